"""Targets with short convolutions say what transformers says: what was not accepted is forgotten."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.worker.engine.cuda.paging import use_kernel, use_pages
from tests.worker.engine.drafters.networks import save_random
from tests.worker.engine.running import GREEDY, SEEDED, Oracle, generations, make_pair, make_requests, run
from tests.worker.engine.tiny import Kind, save_tiny_model, tiny_model, tiny_tokenizer
from worker.engine import Engine, Failure, Generation, Request
from worker.engine.cache import Chunk
from worker.engine.convolution import ShortConvolution
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.decoder import DecoderLayers
from worker.engine.sampling import Draw, choose
from worker.engine.types import Method

SAMPLINGS = {"greedy": replace(GREEDY, max_tokens=24), "seeded": replace(SEEDED, max_tokens=24)}
LAYERS = 4  # convolution, attention, and two convolutions that see what both remember
LONG_TEXTS = (0, 1, 2)  # prompts after which these weights go on for long
HEAD_DIM = 16  # the compiled attention takes it

Tokens = Mapping[object, tuple[int, ...]]


def generated(model: PreTrainedModel, request: Request) -> tuple[int, ...]:
    """By transformers' own loop and cache, each token drawn with the request's noise."""

    def draw(ids: Tensor, logits: Tensor) -> Tensor:
        position = ids.shape[1] - len(request.token_ids)
        token = choose(logits, [Draw(request.sampling, request.sample_index, position)])
        return torch.full_like(logits, -torch.inf).scatter(1, token[:, None], 0.0)

    ids = torch.tensor([request.token_ids])
    output = cast(Any, model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.sampling.max_tokens,
        do_sample=False,
        logits_processor=[draw],
    )
    return tuple(output[0, len(request.token_ids) :].tolist())


class Case:
    """A model on disk, a draft model that is right now and then, and what transformers says."""

    def __init__(self, root: Path, kind: Kind) -> None:
        options: dict[str, Any] = {"dtype": torch.float32, "layers": LAYERS, "head_dim": HEAD_DIM}
        self.target = save_tiny_model(root / "target", kind, **options)
        self.draft = root / "draft"
        draft = tiny_model(kind, **options)
        generator = torch.Generator().manual_seed(1)
        for parameter in draft.parameters():
            parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
        draft.save_pretrained(self.draft)
        tiny_tokenizer().save_pretrained(self.draft)
        self._network = save_random(root / "network", dtype=torch.float32)
        self._model = AutoModelForCausalLM.from_pretrained(self.target, dtype=torch.float32)
        self._known: dict[Request, tuple[int, ...]] = {}

    def expected(self, requests: Sequence[Request]) -> Tokens:
        for request in requests:
            if request not in self._known:
                self._known[request] = generated(self._model, request)
        return {request.id: self._known[request] for request in requests}

    def engine(self, method: Method = "none", drafter: Oracle | None = None, **options: object) -> Engine:
        draft = self._network if method == "dspark" else self.draft
        pair = make_pair(self.target, method, draft, **({"dtype": "float32"} | options))
        return Engine(pair, drafter)


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("lfm2"), "lfm2")


@pytest.fixture(autouse=True)
def _lookup_finds_a_single_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.engine.drafters.prompt_lookup.MIN_NGRAM", 1)  # random text repeats little


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(4, 279, (length,), generator=generator).tolist())


def tokens(engine: Engine, requests: Sequence[Request]) -> Tokens:
    return {key: g.token_ids for key, g in generations(engine, requests).items()}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", ["none", "prompt_lookup", "suffix", "draft_model", "dspark"])
def test_a_full_batch_says_what_transformers_generates(method: Method, sampling: str, lfm2: Case):
    requests = make_requests(8, SAMPLINGS[sampling])
    engine = lfm2.engine(method, max_rows=3, prefill_tokens=5)

    results = generations(engine, requests)

    assert {key: g.token_ids for key, g in results.items()} == lfm2.expected(requests)
    drafted = sum(g.num_draft_tokens for g in results.values())
    if method == "draft_model":
        assert 10 <= sum(g.num_accepted_draft_tokens for g in results.values()) <= drafted - 10
    if method == "dspark":
        assert drafted > 10


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "true_tokens", [[0], [3, 0, 4, 1, 2, 4, 0]], ids=["always wrong", "right now and then"]
)
def test_what_was_not_accepted_leaves_no_trace(true_tokens: list[int], sampling: str, lfm2: Case):
    requests = make_requests(8, SAMPLINGS[sampling])
    expected = lfm2.expected(requests)

    engine = lfm2.engine(drafter=Oracle(expected, true_tokens), max_rows=3, prefill_tokens=5)

    assert tokens(engine, requests) == expected


def test_a_prompt_alone_says_the_same(lfm2: Case):
    for request in make_requests(8, SAMPLINGS["greedy"])[:3]:
        engine = lfm2.engine("prompt_lookup", max_rows=1)
        assert tokens(engine, [request]) == lfm2.expected([request])


def test_experts_beside_convolutions(tmp_path: Path):
    moe = Case(tmp_path, "lfm2_moe")
    requests = make_requests(5, SAMPLINGS["seeded"])
    assert tokens(moe.engine("draft_model", max_rows=3, prefill_tokens=5), requests) == moe.expected(requests)


@pytest.mark.parametrize("own", [0, 1, 2, 5])
def test_a_beginning_taken_over_at_any_place_brings_its_last_inputs(own: int, lfm2: Case):
    """Prompts part after 40 tokens, less or more than a convolution's length before their own end."""
    sampling = SAMPLINGS["seeded"]
    requests = [Request(i, prompt(9, 40) + prompt(i, own) + (7 + i,), sampling) for i in range(6)]
    results = generations(lfm2.engine("prompt_lookup", max_rows=3), requests)

    assert {key: g.token_ids for key, g in results.items()} == lfm2.expected(requests)
    assert all(g.cached_tokens >= 40 for key, g in results.items() if key != 0)


def test_samples_of_a_prompt_share_it_while_the_first_goes_on(lfm2: Case):
    requests = [Request(i, prompt(3, 40), SAMPLINGS["seeded"], sample_index=i) for i in range(5)]
    results = generations(lfm2.engine("draft_model", max_rows=2), requests)

    assert {key: g.token_ids for key, g in results.items()} == lfm2.expected(requests)
    assert sorted(g.cached_tokens for g in results.values()) == [0, 39, 39, 39, 39]


def test_rows_that_made_room_go_on_as_they_would(lfm2: Case):
    requests = [Request(i, prompt(20 + i, 5), replace(SEEDED, max_tokens=90)) for i in LONG_TEXTS]
    engine = lfm2.engine("prompt_lookup")
    cast(Any, engine._target.cache)._max_tokens = 3 * 75
    for request in requests:
        engine.submit(request)
    said: dict[object, tuple[int, ...]] = {}
    has_waited = False
    while engine.busy:
        said |= {r.request_id: r.token_ids for r in engine.step() if isinstance(r, Generation)}
        has_waited = has_waited or any(row.num_output for row in engine._preempted)

    assert has_waited
    assert said == lfm2.expected(requests)


def test_a_pass_that_failed_half_way_is_run_again(lfm2: Case):
    """Its first layers have remembered what they saw; in the pass that follows, other rows are."""
    requests = make_requests(6, SAMPLINGS["seeded"])
    engine = lfm2.engine("prompt_lookup", prefill_tokens=5)
    last = [module for module in engine._target._model.modules() if isinstance(module, ShortConvolution)][-1]
    passes = 0

    def fail_now_and_then(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes in (5, 12):  # of 6 rows and of 3
            raise MemoryError

    last.register_forward_pre_hook(fail_now_and_then)
    assert tokens(engine, requests) == lfm2.expected(requests)
    assert engine.max_rows < 3


def test_what_was_not_finite_reaches_no_other_row(lfm2: Case):
    poison = 300
    engine = lfm2.engine("prompt_lookup", max_rows=2)
    engine._target._model.get_input_embeddings().weight[poison] = torch.nan
    requests = make_requests(6, SAMPLINGS["seeded"])
    bad = [Request(("bad", i), (*prompt(i, 30), poison, 7), SAMPLINGS["seeded"]) for i in range(4)]

    results = run(engine, [bad[0], *requests[:2], bad[1], bad[2], *requests[2:], bad[3]])

    said = {key: r.token_ids for key, r in results.items() if isinstance(r, Generation)}
    assert said == lfm2.expected(requests)
    assert {cast(Failure, results[request.id]).code for request in bad} == {"not_finite"}


@pytest.mark.parametrize("read_in_place", [False, True], ids=["gathered", "in place"])
def test_in_pages_as_on_a_gpu(read_in_place: bool, lfm2: Case, monkeypatch: pytest.MonkeyPatch):
    use_pages(monkeypatch)
    if read_in_place:
        use_kernel(monkeypatch)
        monkeypatch.setattr("worker.engine.target.graphs_for", lambda *_: None)  # a GPU's own
    shared = [Request(("shared", i), (*prompt(9, 40), 7 + i), SAMPLINGS["seeded"]) for i in range(3)]
    requests = [*make_requests(5, SAMPLINGS["seeded"]), *shared]

    assert tokens(lfm2.engine("draft_model", max_rows=3), requests) == lfm2.expected(requests)


def test_its_layers_run_one_by_one_with_compiled_attention(lfm2: Case):
    """The kernel for all layers at once is for those of Llama's kind."""
    engine = lfm2.engine()
    modules = list(engine._target._model.modules())

    assert sum(isinstance(module, ShortConvolution) for module in modules) == LAYERS - 1
    assert not any(isinstance(module, DecoderLayers) for module in modules)
    engine._target.cache.reserve([Chunk(0, 0, [5], 1)])
    assert isinstance(engine._target.cache.layout([Chunk(0, 0, [5], 1)]), CompiledPass)
