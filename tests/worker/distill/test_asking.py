"""What a batch was asked is asked again, and answered alike."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from db import fleet, queue
from db.connect import writing
from db.queue import Success
from tests.worker.engine.running import make_pair
from tests.worker.engine.tiny import save_tiny_model
from tests.worker.queued import submit
from worker.distill.asking import Ask, asks_of_batch, asks_of_file, checksum
from worker.engine import Engine, Generation, Request, Sampling
from worker.errors import ConfigurationError
from worker.preparing import prepare
from worker.samples import to_columns
from worker.serving import Serving

_PROMPTS = [
    {},
    {"text": None, "messages": [{"role": "user", "content": "the other"}]},
    {"sampling": {"temperature": 0.0, "max_tokens": 9}},
    {"sampling": {"temperature": 1.2, "seed": 5}},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(make_pair(save_tiny_model(tmp_path_factory.mktemp("asked"))))


def _register(conn: Connection) -> None:
    fleet.register_worker(
        conn,
        id="w",
        host="host",
        pid=1,
        device="cpu",
        device_name="CPU",
        device_uuid=None,
        pair="tiny",
        pair_fingerprint="0" * 16,
        slots=4,
        max_rows=4,
        versions={},
    )


def _answer(engine: Engine, request: Request) -> Generation:
    engine.submit(request)
    while engine.busy:
        for result in engine.step():
            assert isinstance(result, Generation)
            return result
    raise AssertionError


def test_a_batchs_texts_come_again(database: Database, engine: Engine) -> None:
    batch = submit(database, _PROMPTS, sampling={"temperature": 0.8, "max_tokens": 12})
    serving = Serving("w", "tiny", engine.tokenizer, {}, 4, 4, 60)
    texts: list[str] = []
    with writing(database) as conn:
        _register(conn)
        claimed = queue.claim(conn, "tiny", "w", 3, 60)  # the last prompt has no result yet
        for prompt in claimed:
            prepared = prepare(prompt, serving)
            generation = _answer(engine, prepared.requests[0])
            texts.append(generation.text)
            columns = to_columns(generation, prepared.requests[0].sampling.seed, 0.0)
            queue.complete(conn, "w", [Success(prompt.lease, prepared.rendered, [columns])], [])
    asks = asks_of_batch(database, batch.id, 128)
    assert [ask.place for ask in asks] == ["p0", "p1", "p2"]
    assert [_answer(engine, ask.request(i, engine)).text for i, ask in enumerate(asks)] == texts
    shorter = asks_of_batch(database, batch.id, 10)
    assert [ask.sampling.max_tokens for ask in shorter] == [10, 10, 9]


def test_a_batch_without_results_is_refused(database: Database) -> None:
    batch = submit(database, _PROMPTS)
    with pytest.raises(ConfigurationError, match="has no results yet"):
        asks_of_batch(database, batch.id, 128)


def test_a_files_prompts_are_greedy_and_may_name_their_kind(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "kind": "count"}\n{"prompt": "two"}\n')
    first, second = asks_of_file(file, 7)
    assert first.sampling == Sampling(max_tokens=7)
    assert (first.kind, second.kind) == ("count", "")


def test_one_prompt_of_fifty_is_held_out_whatever_is_beside_it() -> None:
    asks = [Ask("", f"prompt {number}", "", Sampling()) for number in range(2000)]
    assert 20 < sum(ask.is_held_out for ask in asks) < 60
    again = Ask("elsewhere", asks[3].prompt, "a kind", Sampling(temperature=1))
    assert again.is_held_out == asks[3].is_held_out
    assert checksum(asks) != checksum(asks[::-1])
    assert json.loads(asks[3].text) == "prompt 3"
