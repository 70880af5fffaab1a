"""A product by our kernel is that of the matrices, and a row's part of it is the row's own."""

import pytest
import torch
from torch import Tensor

from worker.engine.cpu.kernels import Kernels, kernels_for, rounding_error
from worker.engine.cpu.products import PanelProduct

# Around the sizes that the kernel works in: tiles of 12, 16 and 32 rows, and 96 in a pass over the weights.
ROWS = (1, 2, 3, 4, 12, 13, 15, 16, 17, 31, 32, 33, 48, 95, 96, 97, 112, 129, 200)


def _kernels(dtype: torch.dtype) -> Kernels:
    kernels = kernels_for(dtype, "cpu")
    if kernels is None or not kernels.can_multiply:
        pytest.skip("no compiled product on this machine")
    return kernels


def _matrices(dtype: torch.dtype, depth: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(depth + columns)
    shapes = (max(ROWS), depth), (columns, depth), (columns,)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("depth", "columns"), [(32, 32), (64, 96), (96, 40), (62, 33), (576, 64)])
def test_any_number_of_rows_is_multiplied(dtype: torch.dtype, depth: int, columns: int) -> None:
    x, weight, bias = _matrices(dtype, depth, columns)
    product = PanelProduct(weight, bias, _kernels(dtype))
    right = x.double() @ weight.double().t() + bias.double()
    for rows in ROWS:
        error = (product(x[:rows]).double() - right[:rows]).abs().max()
        assert error <= rounding_error(dtype) * right[:rows].abs().max(), f"{rows} rows"


@pytest.mark.parametrize("depth", [64, 576])
@pytest.mark.parametrize(
    ("dtype", "int8"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True)],
    ids=["by tiles", "8 bits by 16", "8 bits by 32"],
)
def test_a_row_is_the_same_among_any_others(dtype: torch.dtype, int8: bool, depth: int) -> None:
    """So that a token's logits in bfloat16 are those that plain decoding would have given."""
    kernels = _kernels(dtype)
    if not (kernels.int8_step if int8 else kernels.has_tiles):
        pytest.skip("this CPU has no such product")
    x, weight, _ = _matrices(dtype, depth, 96)
    product = PanelProduct(weight, None, kernels, int8=int8)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), alone[:rows]), f"{rows} rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_in_its_row(dtype: torch.dtype) -> None:
    x, weight, _ = _matrices(dtype, 64, 40)
    product = PanelProduct(weight, None, _kernels(dtype))
    right = product(x[:50])
    x[20] = torch.nan
    x[21, 3] = torch.inf
    got = product(x[:50])
    assert got[20].isnan().all()
    assert not got[21].isfinite().any()
    others = [row for row in range(50) if row not in (20, 21)]
    assert torch.equal(got[others], right[others])
    # What was in a thread's tiles is not in the next product's.
    assert torch.equal(product(x[:5]), right[:5])
