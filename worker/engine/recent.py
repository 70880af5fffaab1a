"""The last inputs of each token's row, from a cache that has them by position."""

from collections.abc import Callable

import torch
from torch import Tensor


class RecentInputs:
    """For the tokens of one pass, whose layers all ask for the same places."""

    def __init__(self, slots: Tensor, positions: Tensor, places: Callable[[Tensor, Tensor], Tensor]) -> None:
        """`places`: of slots and positions, among all that a buffer has room for."""
        self._slots, self._positions, self._places = slots, positions, places
        self._windows: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def update(self, buffer: Tensor, inputs: Tensor, length: int) -> Tensor:
        """Store inputs [1, T, D]; the last so many of each token's row, its own the last, [T, length, D].

        Before a row's first token they are zeros.
        """
        own, places, outside = self._window(length)
        stored = buffer.view(-1, buffer.shape[-1])
        stored.index_copy_(0, own, inputs[0])
        return stored[places].masked_fill_(outside, 0)

    def _window(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where each token's own input is, where the last ones are, and which of those there are not."""
        if length not in self._windows:
            back = torch.arange(length - 1, -1, -1, device=self._positions.device)
            positions = self._positions[:, None] - back
            places = self._places(self._slots[:, None], positions.clamp(min=0))
            self._windows[length] = places[:, -1].contiguous(), places, (positions < 0)[..., None]
        return self._windows[length]
