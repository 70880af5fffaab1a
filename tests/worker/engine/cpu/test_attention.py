"""The attention kernel answers what torch's own attention does, row by row, and stores keys and values."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from worker.engine.cpu.kernels import Kernels, kernels_for

POSITIONS = 320
DTYPES = [torch.float32, torch.bfloat16]
# (start, length) of each row's chunk: single tokens, verify blocks, prompts, and the last position of a slot.
ROWS = [(0, 1), (63, 1), (64, 1), (100, 6), (0, 70), (150, 130), (POSITIONS - 1, 1), (POSITIONS - 5, 5)]


def kernels(dtype: torch.dtype) -> Kernels:
    found = kernels_for(dtype, "cpu")
    assert found is not None, "these tests need a C++ compiler"
    return found


def expected(
    query: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, is_causal: bool = True
) -> Tensor:
    """Of [H, T, D] over a slot [H_kv, P, D], in float64."""
    end = start + query.shape[1]
    positions = torch.arange(start, end)[:, None]
    seen = torch.arange(keys.shape[1]) <= (positions if is_causal else torch.full_like(positions, end - 1))
    if window is not None:
        seen &= torch.arange(keys.shape[1]) > positions - window
    arguments = (x.double()[None] for x in (query, keys, values))
    return scaled_dot_product_attention(*arguments, attn_mask=seen, scale=0.2, enable_gqa=True)[0]


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "whole"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "key_dim", "value_dim", "window"),
    [
        (9, 3, 64, 64, None),
        (8, 8, 16, 16, None),
        (8, 2, 128, 128, None),
        (7, 1, 48, 80, None),
        (2, 1, 256, 256, None),
        (9, 3, 64, 64, 1),
        (8, 2, 32, 32, 17),
        (4, 2, 64, 64, 100),
    ],
)
def test_ragged_rows_equal_torchs_attention(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    window: int | None,
    is_causal: bool,
):
    torch.manual_seed(heads)
    tokens = sum(length for _, length in ROWS)
    query = torch.randn(tokens, heads, key_dim).to(dtype).transpose(0, 1)
    key = torch.randn(tokens, kv_heads, key_dim).to(dtype).transpose(0, 1)
    value = torch.randn(kv_heads, tokens, value_dim).to(dtype)  # another layout in memory
    keys = torch.randn(len(ROWS) + 1, kv_heads, POSITIONS, key_dim).to(dtype)
    values = torch.randn(len(ROWS) + 1, kv_heads, POSITIONS, value_dim).to(dtype)
    before = keys.clone(), values.clone()
    output = torch.empty(tokens, heads, value_dim, dtype=dtype)
    slots = list(range(len(ROWS), 0, -1))  # the first slot is nobody's

    table = chunk_table(slots, ROWS)
    chunks = torch.tensor(table)
    kernels(dtype).attend(query, key, value, keys, values, chunks, 0.2, window, output, is_causal=is_causal)

    for slot, start, offset, length in table:
        part = slice(offset, offset + length)
        for cache, old, new in ((keys, before[0], key), (values, before[1], value)):
            old[slot, :, start : start + length] = new[:, part]
            assert torch.equal(cache[slot], old[slot])
        right = expected(query[:, part], keys[slot], values[slot], start, window, is_causal).transpose(0, 1)
        tolerance = 2e-6 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(output[part].double(), right, rtol=tolerance, atol=tolerance)
    assert torch.equal(keys[0], before[0][0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_neighbours_nor_on_how_its_tokens_are_split(dtype: torch.dtype):
    torch.manual_seed(0)
    query, key, value = (torch.randn(heads, 6, 64).to(dtype) for heads in (6, 2, 2))
    keys, values = (torch.randn(3, 2, POSITIONS, 64).to(dtype) for _ in range(2))
    together = torch.empty(6, 6, 64, dtype=dtype)
    alone = torch.empty(6, 6, 64, dtype=dtype)

    table = torch.tensor([[0, 7, 0, 1], [1, 130, 1, 5]])
    kernels(dtype).attend(query, key, value, keys.clone(), values.clone(), table, 0.1, None, together)
    for token in range(5):
        one = torch.tensor([[1, 130 + token, 1 + token, 1]])
        kernels(dtype).attend(query, key, value, keys, values, one, 0.1, None, alone)

    assert torch.equal(together[1:], alone[1:])


def test_what_is_not_a_number_stays_in_its_row():
    query, key, value = (torch.randn(2, 2, 32) for _ in range(3))
    key[:, 0] = torch.nan
    keys, values = torch.zeros(2, 2, 16, 32), torch.zeros(2, 2, 16, 32)
    output = torch.empty(2, 2, 32)

    table = torch.tensor([[0, 3, 0, 1], [1, 3, 1, 1]])
    kernels(torch.float32).attend(query, key, value, keys, values, table, 1.0, None, output)

    assert output[0].isnan().all()
    assert output[1].isfinite().all()


def chunk_table(slots: Sequence[int], rows: Sequence[tuple[int, int]]) -> list[list[int]]:
    table: list[list[int]] = []
    offset = 0
    for slot, (start, length) in zip(slots, rows, strict=True):
        table.append([slot, start, offset, length])
        offset += length
    return table
