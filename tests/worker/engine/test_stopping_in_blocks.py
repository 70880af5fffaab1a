"""A row ends at its first EOS, stop string or last token, though a verified block goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.engine.running import GREEDY, Oracle, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Generation, Request, Sampling
from worker.engine.detokenizer import Detokenizer, TokenDecoder
from worker.engine.rows import Row

Folders = Callable[[Kind], Path]
LONG = Sampling(max_tokens=60, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def plain(target_folder: Folders) -> Engine:
    return Engine(make_pair(target_folder("llama")))


class InBlocks:
    """Runs a request whose outcome is known: each step verifies four true proposals in a block."""

    def __init__(self, folder: Path) -> None:
        self._coming: dict[object, tuple[int, ...]] = {}
        self._engine = Engine(make_pair(folder), Oracle(self._coming, [4]))

    def __call__(self, request: Request, coming: Generation) -> Generation:
        self._coming[request.id] = coming.token_ids
        return generations(self._engine, [request])[request.id]


@pytest.fixture(scope="module")
def in_blocks(target_folder: Folders) -> InBlocks:
    return InBlocks(target_folder("llama"))


def test_an_eos_inside_a_block_ends_the_row_there(plain: Engine, in_blocks: InBlocks):
    requests = make_requests(12, LONG)
    ended = [g for g in generations(plain, requests).values() if g.finish_reason == "stop"]
    assert len({len(g.token_ids) % 5 for g in ended}) >= 3  # at different places of their blocks

    for expected in ended:
        request = requests[int(str(expected.request_id))]
        g = in_blocks(request, expected)
        assert outputs({0: g}) == outputs({0: expected})
        assert g.token_ids[-1] in plain.eos_ids
        assert not plain.eos_ids & set(g.token_ids[:-1])
        # The first token is the prefill's; each step but the last emits five. What counts was accepted.
        assert g.num_draft_tokens == g.num_accepted_draft_tokens
        assert g.num_draft_tokens + g.num_steps - (len(g.token_ids) - 1) in (0, 1)


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_inside_a_block_ends_the_row_there(max_tokens: int, plain: Engine, in_blocks: InBlocks):
    [request] = make_requests(1, GREEDY)
    whole = generations(plain, [request])[0]
    request = replace(request, sampling=replace(GREEDY, max_tokens=max_tokens))

    g = in_blocks(request, whole)

    assert (g.token_ids, g.finish_reason) == (whole.token_ids[:max_tokens], "length")
    assert g.num_accepted_draft_tokens + g.num_steps == max_tokens - 1
    assert g.num_draft_tokens == g.num_accepted_draft_tokens  # nothing is proposed beyond the end


def test_a_stop_string_inside_a_block_ends_the_text_before_it(plain: Engine, in_blocks: InBlocks):
    checked = 0
    for request in make_requests(10, LONG):
        whole = generations(plain, [request])[request.id]
        for start in range(2, len(whole.text) - 3, 4):
            stop = whole.text[start : start + 3]
            if "�" in stop:
                continue
            stopping = replace(request, sampling=replace(LONG, stop=("never", stop)))
            expected = generations(plain, [stopping])[request.id]
            g = in_blocks(stopping, whole)

            assert outputs({0: g}) == outputs({0: expected})
            assert g.text == whole.text[: whole.text.index(stop)]
            assert g.token_ids == whole.token_ids[: len(g.token_ids)]
            assert g.finish_reason == "stop"
            assert g.num_accepted_draft_tokens <= g.num_draft_tokens <= len(g.token_ids) - 1
            checked += 1
    assert checked > 15


def test_the_end_of_the_context_ends_the_row(target_folder: Folders):
    [request] = make_requests(1, replace(GREEDY, max_tokens=500), longest=20)
    expected = generations(Engine(make_pair(target_folder("gemma3"))), [request])[0]
    limit = len(request.token_ids) + 18
    engine = Engine(
        make_pair(target_folder("gemma3"), context_limit=limit), Oracle({0: expected.token_ids}, [4])
    )

    g = generations(engine, [request])[0]

    assert (g.token_ids, g.finish_reason) == (expected.token_ids[:18], "length")


def test_no_half_character_is_left_at_the_end(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama")))
    [request] = make_requests(1, GREEDY)
    tokenizer = engine.tokenizer
    coming = tokenizer.encode("café", add_special_tokens=False)
    assert tokenizer.decode(coming[:-1]).endswith("�")

    # Sampling cannot be told what to say, so the row is asked directly.
    request = replace(request, sampling=Sampling(max_tokens=len(coming) - 1))
    row = Row(request, 0, 100, Detokenizer(TokenDecoder(tokenizer)), 0.0)
    for token in coming[:-1]:
        row.commit_first(token, frozenset())

    assert (row.finish_reason, row.generation("none").text) == ("length", "caf")
