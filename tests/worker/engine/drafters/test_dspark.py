"""DSpark changes nothing but the time; and what it proposes is what its equations say of the whole text."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.engine.drafters.networks import (
    CONFIG,
    FUSED,
    LAYERS,
    from_scratch,
    save_forgetful_target,
    save_knowing,
    save_random,
    save_target,
)
from tests.worker.engine.running import (
    GREEDY,
    SEEDED,
    generations,
    make_pair,
    make_requests,
    outputs,
)
from tests.worker.engine.tiny import END, EOS, Kind
from worker.engine import Engine, Request, Sampling
from worker.engine.drafters import DSparkDrafter, NoDrafter, Proposal
from worker.engine.dspark.cached import CachedNetwork
from worker.engine.dspark.checkpoints import TargetFacts, load_network
from worker.engine.dspark.config import DSparkConfig
from worker.engine.loading import load_model
from worker.engine.planner import VerifyAll
from worker.engine.rows import Row
from worker.engine.types import DType, FolderModel

SIZES: dict[str, Any] = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96}  # those of FUSED


class _NoLookup(NoDrafter):
    def spliced(self, row: Row, tokens: Sequence[int]) -> Sequence[int]:  # noqa: ARG002 (a lookup's)
        return tokens


@pytest.fixture(autouse=True)
def _no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network alone; that lookup goes first is tested elsewhere."""
    monkeypatch.setattr("worker.engine.engine.PromptLookup", _NoLookup)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A target and a network for it: one that is always wrong, and one that is often right."""
    root = tmp_path_factory.mktemp("dspark")
    single = torch.float32
    target = save_target(root / "target", single)
    forgetful = save_forgetful_target(root / "forgetful", single)
    half = replace(CONFIG, draft_vocab_size=160)
    return {
        "random": (target, save_random(root / "random", dtype=single)),
        "knowing": (forgetful, save_knowing(root / "knowing", forgetful, dtype=single)),
        "knowing half": (forgetful, save_knowing(root / "half", forgetful, half, dtype=single)),
    }


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", ["random", "knowing", "knowing half"])
def test_a_full_batch_says_what_each_prompt_says_alone_without(
    kind: str, sampling: Sampling, folders: dict[str, tuple[Path, Path]]
) -> None:
    target, network = folders[kind]
    requests = make_requests(12, sampling)
    alone = Engine(make_pair(target, dtype="float32"))
    expected = {request.id: outputs(generations(alone, [request]))[request.id] for request in requests}

    for max_rows in (8, 3):
        engine = Engine(make_pair(target, "dspark", network, dtype="float32", max_rows=max_rows))
        results = generations(engine, requests)
        assert outputs(results) == expected
        assert {g.spec_disabled_reason for g in results.values()} == {None}
        drafted = sum(g.num_draft_tokens for g in results.values())
        accepted = sum(g.num_accepted_draft_tokens for g in results.values())
        assert drafted > 100
        if kind == "knowing":
            assert accepted > 0.6 * drafted, "sampled too: it draws with the target's noise"
        if kind == "knowing half":
            assert accepted > 0.2 * drafted
    shuffled = random.Random(1).sample(requests, k=5)
    assert outputs(generations(engine, shuffled)) == {r.id: expected[r.id] for r in shuffled}


def test_penalties_a_bias_and_a_grammar_bind_the_proposals_too(folders: dict[str, tuple[Path, Path]]) -> None:
    target, network = folders["knowing half"]
    samplings = [
        replace(SEEDED, repetition_penalty=1.3, frequency_penalty=0.4),
        replace(GREEDY, logit_bias=((20, 4.0), (41, -8.0)), min_tokens=20),
        replace(GREEDY, regex="[a-f0-9]{30}"),
        SEEDED,
    ]
    prompts = make_requests(4, GREEDY)
    requests = [replace(r, sampling=s) for r, s in zip(prompts, samplings, strict=True)]
    plain = generations(Engine(make_pair(target, dtype="float32")), requests)

    results = generations(Engine(make_pair(target, "dspark", network, dtype="float32")), requests)

    assert outputs(results) == outputs(plain)
    assert {g.spec_disabled_reason for g in results.values()} == {None}
    assert all(g.num_accepted_draft_tokens for g in results.values())


def test_the_law_of_a_sample_is_the_targets(folders: dict[str, tuple[Path, Path]]) -> None:
    """Chi-square of the second token, which is proposed: over seeds it is as if nothing had been drafted."""
    target, network = folders["knowing"]
    sampling = Sampling(temperature=1.0, top_k=6, max_tokens=3)
    prompt = make_requests(1, GREEDY)[0].token_ids
    requests = [Request(seed, prompt, replace(sampling, seed=seed)) for seed in range(400)]
    engine = Engine(make_pair(target, "dspark", network, dtype="float32", max_rows=32))
    seen = Counter(g.token_ids[:2] for g in generations(engine, requests).values())

    model = load_model(FolderModel(target), "float32", "cpu", attention="sdpa").model

    def law(tokens: Sequence[int]) -> dict[int, float]:
        logits: Tensor = model(torch.tensor([tokens])).logits[0, -1]
        values, ids = logits.topk(6)
        tokens_there: list[int] = ids.tolist()
        chances: list[float] = values.softmax(-1).tolist()
        return dict(zip(tokens_there, chances, strict=True))

    statistic = freedom = rest_seen = rest_expected = 0.0
    for first, p in law(prompt).items():
        for second, q in law([*prompt, first]).items():
            expected, found = 400 * p * q, seen.pop((first, second), 0)
            if expected >= 5:
                statistic += (found - expected) ** 2 / expected
                freedom += 1
            else:
                rest_seen, rest_expected = rest_seen + found, rest_expected + expected
    statistic += (rest_seen - rest_expected) ** 2 / rest_expected if rest_expected else 0.0
    assert not seen, "a token that the target does not say"
    assert freedom > 5
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


class Recorder(DSparkDrafter):
    """Keeps what each row was when it was asked about, and what was made of it."""

    hidden: list[tuple[list[int], Tensor]]

    def __init__(self, network: CachedNetwork, vocab_size: int) -> None:
        super().__init__(network, vocab_size)
        Recorder.hidden = []

    def _draft(self, rows: Sequence[Row], limits: Sequence[int], hidden: Tensor) -> list[Proposal]:
        Recorder.hidden += [(list(row.tokens), h.clone()) for row, h in zip(rows, hidden, strict=True)]
        return super()._draft(rows, limits, hidden)


VARIANTS: dict[str, tuple[DSparkConfig, DType, Kind]] = {
    "plain": (CONFIG, "float64", "qwen3"),
    "window": (replace(CONFIG, window=7, unwindowed=frozenset({1}), is_causal=None), "float64", "qwen3"),
    "causal": (replace(CONFIG, is_causal=True, anchor_predicts=False), "float64", "qwen3"),
    "interleaved": (replace(CONFIG, rope_interleaved=True), "float64", "qwen3"),
    "by the kernel": (replace(FUSED, window=9), "float32", "qwen3"),
    "in 16 bits": (FUSED, "bfloat16", "qwen3"),
    "in 8 bits": (replace(FUSED, intermediate_size=128), "float32", "qwen3"),
    "in 8 bits of 16": (replace(FUSED, intermediate_size=128), "bfloat16", "qwen3"),
    "in 8 bits, of sizes that tiles do not take": (FUSED, "float32", "qwen3"),
    "fed what precedes it": (replace(CONFIG, feeds_last_feature=True), "float64", "qwen3"),
    "where the masks alone propose": (replace(CONFIG, anchor_predicts=False), "float64", "qwen3"),
    "of a target with convolutions": (CONFIG, "float64", "lfm2"),
    "beside heads that the kernel does not take": (FUSED, "float32", "qwen3"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_block_is_what_the_equations_make_of_the_whole_text(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was accepted, rolled back, shared or preempted before."""
    config, dtype, kind = VARIANTS[variant]
    in_8_bits = variant.startswith("in 8 bits")
    monkeypatch.setattr("worker.engine.engine.DSparkDrafter", Recorder)
    if not in_8_bits:
        monkeypatch.setattr("worker.engine.dspark.cached.may_round", lambda _: False)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    sizes = SIZES if config.hidden_size == 64 else {}
    if variant.startswith("beside heads"):
        sizes = sizes | {"head_dim": 24}
    target = save_target(tmp_path / "target", torch_dtype, kind, **sizes)
    network = save_random(tmp_path / "network", config, torch_dtype)
    prompts = make_requests(5, SEEDED)
    longest = max(prompts, key=lambda request: len(request.token_ids))
    alike = [replace(longest, id="alike", token_ids=(*longest.token_ids, 50, 60))]
    engine = Engine(
        make_pair(target, "dspark", network, dtype=dtype, max_rows=3, prefill_tokens=11, context_limit=90)
    )
    generations(engine, prompts)
    generations(engine, [longest])
    results = generations(engine, alike)
    assert results["alike"].cached_tokens > 10

    recorded = random.Random(0).sample(Recorder.hidden, k=25) + Recorder.hidden[-2:]
    assert max(len(tokens) for tokens, _ in recorded) > 60
    assert len({len(hidden) for _, hidden in Recorder.hidden}) > 1, "blocks as long as they are asked for"
    tolerance = {"float64": 1e-6, "float32": 2e-3, "bfloat16": 0.15}[dtype]
    check_blocks(recorded, target, network, dtype, max(tolerance, 0.1) if in_8_bits else tolerance)


def check_blocks(
    recorded: Sequence[tuple[list[int], Tensor]],
    target: Path,
    network_folder: Path,
    dtype: DType,
    tolerance: float,
) -> None:
    loaded = load_model(FolderModel(target), dtype, "cpu", attention="sdpa")
    network = load_network(network_folder, TargetFacts.of(loaded))
    for tokens, found in recorded:
        with torch.no_grad():
            output = loaded.model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
        taps = [output.hidden_states[tap + 1][0] for tap in network.config.taps]
        expected = from_scratch(network, torch.cat(taps, dim=-1), tokens, len(found))
        error = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
        assert error < tolerance


def test_rows_that_were_preempted_draft_on(folders: dict[str, tuple[Path, Path]]) -> None:
    target, network = folders["knowing"]
    requests = make_requests(8, SEEDED)
    plain = generations(Engine(make_pair(target, dtype="float32")), requests)
    per_token = 2 * (LAYERS + CONFIG.num_layers) * 2 * 8 * 4  # keys and values, two heads of eight, float32
    kv_cache = f"{300 * per_token / 2**20:.4f}MiB"
    small = make_pair(target, "dspark", network, dtype="float32", kv_cache=kv_cache)

    results = generations(Engine(replace(small, context_limit=120)), requests)

    assert outputs(results) == outputs(plain)
    assert sum(g.num_accepted_draft_tokens for g in results.values()) > 100


def test_what_is_not_a_number_ends_only_the_drafting(folders: dict[str, tuple[Path, Path]]) -> None:
    target, _ = folders["random"]
    requests = make_requests(4, GREEDY)
    plain = generations(Engine(make_pair(target, dtype="float32")), requests)
    loud = folders["random"][1].with_name("loud")
    config: DSparkConfig = replace(CONFIG, rms_norm_eps=float("nan"))
    save_random(loud, config, torch.float32)

    engine = Engine(make_pair(target, "dspark", loud, dtype="float32"))
    results = generations(engine, requests)

    assert outputs(results) == outputs(plain)
    assert {g.spec_disabled_reason for g in results.values()} == {
        "the drafter's output was not a finite number"
    }


def test_what_is_not_a_number_is_erased_where_room_was_made_for_a_short_block(tmp_path: Path) -> None:
    """A cache grows in steps: some of these rows' blocks end where it does."""
    target = save_target(tmp_path / "target", torch.float32, max_position_embeddings=512)
    loud = save_random(tmp_path / "loud", replace(CONFIG, rms_norm_eps=float("nan")), torch.float32)
    engine = Engine(make_pair(target, "dspark", loud, dtype="float32"), planner=VerifyAll(1))
    for length in range(250, 258):
        request = Request(length, tuple(range(5, 5 + length)), replace(GREEDY, max_tokens=5))
        [result] = generations(engine, [request]).values()
        assert result.spec_disabled_reason == "the drafter's output was not a finite number"


def test_at_the_contexts_end_rows_go_on_without_blocks(folders: dict[str, tuple[Path, Path]]) -> None:
    target, network = folders["knowing"]
    endless = replace(GREEDY, max_tokens=200, logit_bias=((EOS, -99.0), (END, -99.0)))
    request = Request(0, make_requests(1, GREEDY)[0].token_ids, endless)
    plain = generations(Engine(make_pair(target, dtype="float32", context_limit=64)), [request])

    engine = Engine(make_pair(target, "dspark", network, dtype="float32", context_limit=64))
    results = generations(engine, [request])

    assert outputs(results) == outputs(plain)
    assert results[0].prompt_tokens + len(results[0].token_ids) == 64
    assert results[0].spec_disabled_reason is None
