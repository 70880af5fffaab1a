"""The largest logits, the weight of others, and a block's tokens one by one: by kernels as by torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.worker.distill.texts import tiny_network
from worker.engine.cpu.choosing import largest, most_probable
from worker.engine.cpu.drafting import walk_of
from worker.engine.cpu.kernels import kernels_for
from worker.engine.dspark.heads import MarkovHead

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 8191, 8192, 8200, 20_000])
def test_the_first_of_the_largest_is_found(dtype: torch.dtype, columns: int) -> None:
    # Rounded to few values, so that many are equal.
    logits = (3 * torch.randn(7, columns, generator=torch.Generator().manual_seed(columns))).round().to(dtype)
    logits[3] = -torch.inf
    logits[4, columns // 2] = torch.inf
    values, tokens = largest(logits)
    assert torch.equal(values, logits.max(dim=1).values)
    first = (logits == values[:, None]).int().argmax(dim=1)  # of ones and zeros, which argmax takes in order
    assert torch.equal(tokens, first)
    assert values.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 5, 9000, 19_999])
def test_what_is_no_number_is_told_wherever_it_is(dtype: torch.dtype, place: int) -> None:
    logits = torch.zeros(3, 20_000, dtype=dtype)
    logits[1, place] = torch.nan
    values, _ = largest(logits)
    assert values.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_that_do_not_lie_together_are_read_as_they_lie(dtype: torch.dtype) -> None:
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).to(dtype).t()
    values, tokens = largest(logits)
    assert torch.equal(values, logits.max(dim=1).values)
    assert torch.equal(tokens, logits.argmax(dim=1))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("count", [1, 5, 64])
@pytest.mark.parametrize("columns", [64, 65, 79, 1000, 20_000])
def test_candidates_are_the_largest_and_the_others_weight_is_what_is_left(
    dtype: torch.dtype, count: int, columns: int
) -> None:
    generator = torch.Generator().manual_seed(columns + count)
    logits = (3 * torch.randn(9, columns, generator=generator)).to(dtype)
    logits[1] = logits[1].round()  # many are equal
    logits[2] = 7.0
    logits[3, 2:] = -torch.inf  # fewer than are asked for
    logits[4] = logits[4].sort().values
    logits[5] = logits[5].sort(descending=True).values
    temperatures = torch.tensor([0.3, 1.0, 2.0] * 3, dtype=torch.float64)
    highest = logits.max(dim=1).values
    scores, tokens, others = most_probable(logits, highest, temperatures, count)

    exact = (logits.double() - highest[:, None].double()) / temperatures[:, None]
    ordered = exact.sort(descending=True, stable=True)
    torch.testing.assert_close(scores.double(), ordered.values[:, :count], rtol=1e-6, atol=1e-6)
    is_said = scores.isfinite()
    if kernels_for(dtype, "cpu") is not None:  # of equals torch takes any, a kernel the first
        assert torch.equal(tokens[is_said], ordered.indices[:, :count][is_said])
    torch.testing.assert_close(others, ordered.values[:, count:].exp().sum(dim=1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_candidates_of_a_row_that_is_no_number_disturb_no_other(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(2)).to(dtype)
    alone = most_probable(logits[::2].contiguous(), logits[::2].max(dim=1).values, torch.ones(2), 64)
    logits[1, ::3], logits[1, 1] = torch.nan, torch.inf
    together = most_probable(logits, logits.max(dim=1).values, torch.ones(3), 64)
    for ours, right in zip(together, alone, strict=True):
        assert torch.equal(ours[::2], right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 13, 100])
@pytest.mark.parametrize("int8", [False, True], ids=["", "in 8 bits"])
def test_a_walk_takes_the_most_likely_token_at_each_position(
    dtype: torch.dtype, rows: int, int8: bool
) -> None:
    tiny = tiny_network(draft_vocab=32)
    if int8:  # a rank that tiles take, and weights that 8 bits hold
        tiny.config = replace(tiny.config, markov_rank=64)
        tiny.markov_head = MarkovHead(tiny.config)
        with torch.no_grad():
            w2 = tiny.markov_head.markov_w2.weight
            w2.copy_((w2 * 127 / w2.abs().amax(dim=1, keepdim=True)).round() / 1024)
    network = tiny.to(dtype).eval()
    head = network.markov_head
    kernels = kernels_for(dtype, "cpu")
    if int8 and (kernels is None or not kernels.int8_step):
        pytest.skip("this CPU does not multiply integers")
    walk = walk_of(network, kernels, int8=int8)
    if walk is None or head is None:
        pytest.skip("no compiled product on this machine")
    assert walk.is_int8 is int8
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 4, 32, generator=generator).to(dtype)
    logits[0, 1, 7] = torch.nan
    anchors = torch.randint(0, network.config.vocab_size, (rows,), generator=generator)
    tokens, embedded = walk.guess(logits, network.token_ids, anchors)

    previous, right = anchors, list[Tensor]()
    for position in range(4):
        assert torch.equal(embedded[:, position], head.embed(previous))
        bias, _ = head(head.embed(previous), torch.empty(0), None)
        scores = (logits[:, position] + bias).float()
        right.append(torch.where(scores.isnan().any(dim=1), -1, network.token_ids[scores.argmax(dim=1)]))
        # Sums in another order may round otherwise, and tell two nearly equal ones apart otherwise.
        chosen = scores.gather(1, _columns(network.token_ids, tokens[:, position]))[:, 0]
        near = chosen >= scores.max(dim=1).values - (0.05 if dtype == torch.bfloat16 else 1e-4)
        assert bool((near | (right[-1] < 0)).all())
        assert torch.equal(right[-1] < 0, tokens[:, position] < 0)
        previous = tokens[:, position].clamp(min=0)
    assert tokens[0, 1] == -1


def _columns(token_ids: Tensor, tokens: Tensor) -> Tensor:
    return (token_ids == tokens.clamp(min=0)[:, None]).int().argmax(dim=1, keepdim=True)
