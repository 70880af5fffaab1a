"""Sampled tokens follow the target's law exactly, and are a function of logits and key alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.worker.engine.running import generations, make_pair
from tests.worker.engine.tiny import Kind, tiny_model
from worker.engine import Engine, Request, Sampling
from worker.engine.sampling import NOT_FINITE, Draw, choose

LAWS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.5),
    Sampling(temperature=1.5, top_k=5),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=1.3, top_k=7, top_p=0.7),
]


def law(logits: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities that transformers would sample from."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits[None])
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores[0].softmax(-1)


def assert_follows(tokens: Tensor, probabilities: Tensor) -> None:
    """Chi-square, with tokens too rare for it taken together; impossible ones never occur."""
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities * len(tokens)
    common = expected >= 5
    observed = [*counts[common].tolist(), *([rare] if (rare := counts[~common].sum().item()) else [])]
    wanted = [*expected[common].tolist(), *([expected[~common].sum().item()] if rare else [])]
    scale = sum(observed) / sum(wanted)
    assert chisquare(observed, [w * scale for w in wanted]).pvalue > 1e-4


@pytest.mark.parametrize("candidates", [1, 4, 64])
@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_the_law_over_a_dozen_tokens_is_exact(sampling: Sampling, candidates: int):
    logits = 1.5 * torch.randn(12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    draws = [Draw(sampling, sample, position) for sample in range(40) for position in range(150)]

    tokens = choose(logits.expand(len(draws), -1).clone(), draws, candidates)

    assert_follows(tokens, law(logits, sampling))


def test_the_law_is_exact_where_the_rest_outweighs_the_candidates():
    logits = torch.randn(600, generator=torch.Generator().manual_seed(4), dtype=torch.float32)
    draws = [Draw(Sampling(temperature=2.0, seed=9), 0, position) for position in range(30_000)]

    tokens = choose(logits.expand(len(draws), -1).clone(), draws)

    assert_follows(tokens, law(logits.double(), Sampling(temperature=2.0)))


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_the_engine_s_samples_follow_the_law_with_a_draft_model(sampling: Sampling, tmp_path: Path):
    """Two tokens after a fixed prompt, over a dozen: the second is verified in a block with the first."""
    target = dozen(tmp_path / "target", seed=0)
    draft = dozen(tmp_path / "draft", seed=1)
    model = tiny_model("llama", vocab_size=12, seed=0)
    requests = [
        Request(i, (4, 7, 5), Sampling(sampling.temperature, sampling.top_p, sampling.top_k, 3, (), 77), i)
        for i in range(3000)
    ]
    engine = Engine(make_pair(target, "draft_model", draft, max_rows=256))
    results = generations(engine, requests)

    assert sum(g.num_accepted_draft_tokens for g in results.values()) > 30
    assert sum(g.num_draft_tokens - g.num_accepted_draft_tokens for g in results.values()) > 100
    with torch.inference_mode():
        first = law(model(torch.tensor([[4, 7, 5]])).logits[0, -1], sampling)
        joint = [
            first[x] * law(model(torch.tensor([[4, 7, 5, x]])).logits[0, -1], sampling) for x in range(12)
        ]
    outcomes = [g.token_ids[0] * 12 + g.token_ids[1] for g in results.values()]
    assert_follows(torch.tensor(outcomes), torch.cat(joint))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=60),
        Sampling(temperature=1.0, top_k=300),
        Sampling(temperature=2.0, top_k=300, top_p=0.9),
        Sampling(temperature=2.0, top_p=0.3),
        Sampling(temperature=3.0, top_p=0.97),
        Sampling(temperature=2.0, top_k=2900),
    ],
    ids=str,
)
def test_filters_that_leave_many_tokens_leave_the_right_ones(sampling: Sampling, dtype: torch.dtype):
    """More than run alone, and more than are sorted at first; and many that tie with the last."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(8))
    logits = (2 * logits).round().div(2).to(dtype)
    logits[1000:1400] = -torch.inf
    least = logits[law(logits.double(), sampling) > 0].min()  # of its equals top-p may leave out any
    draws = [Draw(sampling, 0, position) for position in range(600)]

    tokens = choose(logits.expand(len(draws), -1).contiguous(), draws)

    assert logits[tokens].min() >= least
    allowed = (logits >= least).sum()
    assert tokens.unique().numel() > 0.4 * min(allowed, len(draws))
    if sampling.top_k == 60:  # all that tie with the 60th stay, and each comes as often
        wanted = law(logits.double(), sampling)
        draws = [Draw(sampling, 1, position) for position in range(20_000)]
        assert_follows(choose(logits.expand(len(draws), -1).contiguous(), draws), wanted)


def dozen(folder: Path, seed: int) -> Path:
    """A model of twelve tokens, none of which ends the text."""
    model = tiny_model("llama", vocab_size=12, seed=seed)
    model.config.eos_token_id = None
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"word{i}": i for i in range(12)}, unk_token="word0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def test_a_token_depends_on_nothing_but_its_own_logits_and_key():
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(40, 500, generator=generator)
    draws = [
        Draw(Sampling(t, p, k, seed=s), sample, position)
        for position, (t, p, k, s, sample) in enumerate(
            [
                (0.0, 1.0, 0, 1, 0),
                (1.0, 1.0, 0, 2, 0),
                (1.5, 0.9, 0, 3, 1),
                (0.8, 1.0, 100, 4, 2),
                (1, 0.5, 20, 1, 3),
            ]
            * 8
        )
    ]
    together = choose(logits.clone(), draws)

    order = torch.randperm(40, generator=generator).tolist()
    alone = [choose(logits[i : i + 1].clone(), [draws[i]]).item() for i in range(40)]
    shuffled = choose(logits[order].clone(), [draws[i] for i in order])

    assert together.tolist() == alone
    assert shuffled.tolist() == together[order].tolist()


def test_temperature_zero_is_argmax_and_tiny_temperatures_come_near_it():
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(6))
    for temperature in (0.0, 1e-6, 1e-30):
        draws = [Draw(Sampling(temperature), 0, position) for position in range(6)]
        assert choose(logits.clone(), draws).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token(temperature: float):
    logits = torch.zeros(4, 10)
    logits[1, 3], logits[2, 4] = torch.nan, torch.inf
    logits[3, :9] = -torch.inf  # masked tokens are none of its business

    tokens = choose(logits, [Draw(Sampling(temperature), 0, i) for i in range(4)])

    assert tokens[1:].tolist() == [NOT_FINITE, NOT_FINITE, 9]
    assert tokens[0] >= 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_sampled_in_single_precision(dtype: torch.dtype):
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(7)).to(dtype)
    draws = [Draw(Sampling(temperature=1.0, top_p=0.9), 0, i) for i in range(50)]

    assert choose(logits.clone(), draws).tolist() == choose(logits.float(), draws).tolist()


@settings(max_examples=150, deadline=None)
@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1.0),
    candidates=st.integers(1, 45),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**31),
)
@example([0.0, 0.5, 1e-30], 1.0, 0, 0.5, 1, 0, 0)  # two tie, less the highest
def test_what_is_chosen_was_never_filtered_out(
    scores: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    candidates: int,
    seed: int,
    position: int,
):
    logits = torch.tensor([scores], dtype=torch.float64)
    sampling = Sampling(temperature, top_p, top_k, seed=seed)

    [token] = choose(logits.clone(), [Draw(sampling, 3, position)], candidates).tolist()

    relative = (logits[0] - logits[0].max()) / temperature  # what rounding leaves of their differences
    better = relative > relative[token]  # kept before it, if it is kept
    if 0 < top_k < len(scores):
        assert better.sum() < top_k
    if top_p < 1 and better.any():
        kept = law(logits[0], Sampling(temperature, 1.0, min(top_k, len(scores))))
        assert kept[better].sum() < top_p + 1e-9


def test_a_draft_model_draws_with_the_row_s_own_noise(
    target_folder: Callable[[Kind], Path],
):
    """The target as its own draft model is always right, at any temperature."""
    folder = target_folder("qwen3")
    engine = Engine(make_pair(folder, "draft_model", folder))
    requests = [Request(i, (9, 8, 7, i + 4), Sampling(2.0, 0.95, seed=i, max_tokens=30)) for i in range(6)]

    for g in generations(engine, requests).values():
        assert g.num_accepted_draft_tokens == g.num_draft_tokens > 0
