"""The noise is Philox4x32-10, and uniform."""

import pytest
import torch
from scipy.stats import kstest

from worker.engine import noise
from worker.engine.noise import philox, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
            (0xFFFFFFFF, 0xFFFFFFFF),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_generator_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
):
    c = tuple(torch.tensor([word]) for word in counter)
    k = tuple(torch.tensor([word]) for word in key)

    assert tuple(word.item() for word in philox(c, k)) == expected  # type: ignore[arg-type] # four and two words


def test_draws_are_uniform_and_differ_in_every_part_of_the_key():
    def one(seed: int = 1, sample: int = 2, position: int = 3, token: int = 4, stream: int = 0) -> float:
        return uniforms(torch.tensor([[seed, sample, position]]), torch.tensor([[token]]), stream)[0].item()

    assert len({one(), one(seed=2), one(seed=1 + (1 << 40)), one(sample=3), one(position=4)}) == 5
    assert len({one(), one(token=5), one(stream=1)}) == 3
    assert one() == one()

    tokens = torch.arange(20_000)[None]
    for seed in (0, 2**62 + 17):
        first, second = (drawn[0] for drawn in uniforms(torch.tensor([[seed, 0, 0]]), tokens, 0))
        assert kstest(first.numpy(), "uniform").pvalue > 1e-3
        assert kstest(second.numpy(), "uniform").pvalue > 1e-3
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03
        assert first.min() > 0
        assert first.max() < 1


def test_the_kernel_draws_what_torch_draws(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-(2**63), 2**63 - 1, (50, 3), generator=generator)
    keys[:, 1:] &= 0x7FFFFFFF
    tokens = torch.randint(0, 2**20, (50, 7), generator=generator)
    by_kernel = uniforms(keys, tokens, 1)
    monkeypatch.setattr(noise, "_kernels", lambda: None)
    assert all(map(torch.equal, by_kernel, uniforms(keys, tokens, 1)))
