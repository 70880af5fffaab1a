"""What is captured while generating is what transformers computes for the whole text."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.worker.engine.running import make_pair, make_requests
from tests.worker.engine.tiny import save_tiny_model, tiny_model
from worker.distill.capturing import CapturingDrafter
from worker.distill.generating import generate
from worker.distill.shards import Shards, ShardWriter
from worker.engine import Engine, Request, Sampling

_TAPS = (0, 2)
_SAMPLING = Sampling(max_tokens=12)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("target"), layers=4)


@pytest.fixture(scope="module")
def texts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Some prompts begin alike, and their beginning is computed once; not all fit in at once."""
    folder = tmp_path_factory.mktemp("capture")
    capturing = CapturingDrafter(_TAPS)
    engine = Engine(make_pair(target, max_rows=3, prefill_tokens=8), drafter=capturing)
    requests = make_requests(6, _SAMPLING)
    shared = tuple(range(4, 40))
    requests += [Request(6 + i, (*shared, 50 + i), _SAMPLING) for i in range(4)]
    writer = ShardWriter(folder)
    generate(engine, capturing, requests, writer, 10_000, lambda _: None)
    assert capturing.lost == 0
    return Shards.read(folder)


def test_features_and_distributions_are_the_models(target: Path, texts: Shards) -> None:
    model = cast(Any, tiny_model(layers=4)).from_pretrained(target, dtype=torch.float64)
    assert sorted(texts.prompts) == list(range(10))
    for text in texts:
        tokens = text.tokens.long()
        with torch.no_grad():
            output = model(tokens[None, :-1], output_hidden_states=True)
        features = torch.cat([output.hidden_states[tap + 1][0] for tap in _TAPS], dim=-1)
        torch.testing.assert_close(text.features, features.to(torch.bfloat16))
        expected = output.logits[0, text.prompt_tokens - 1 :].softmax(-1).sort(descending=True)
        assert text.response_tokens == len(text.top_probs)
        torch.testing.assert_close(text.top_probs, expected.values[:, :64].half())
        assert torch.equal(text.top_ids[:, 0].long(), tokens[text.prompt_tokens :])  # it is greedy


def test_it_ends_when_there_are_enough_tokens(target: Path, tmp_path: Path) -> None:
    capturing = CapturingDrafter(_TAPS)
    engine = Engine(make_pair(target, max_rows=2), drafter=capturing)
    generate(engine, capturing, make_requests(40, _SAMPLING), ShardWriter(tmp_path), 30, lambda _: None)
    found = Shards.read(tmp_path)
    assert 30 <= found.response_tokens < 200
    assert not engine.busy
