"""Attention that reads pages where they are, for rows of any lengths at once: FlashAttention, in 16 bits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from worker.engine.cache import Chunk, LayerShape, is_causal, layer_index
from worker.engine.cuda.store import PageStore
from worker.engine.recent import RecentInputs
from worker.engine.transfer import to_device

_MOST_HEAD_DIM = 256
_HEAD_DIM_STEP = 8
# Splitting a row's keys over more of the GPU depends on the batch, and a row's rounding must not.
_NUM_SPLITS = 1


def can_attend(shapes: Sequence[LayerShape], dtype: torch.dtype, device: str) -> bool:
    """Whether the kernel takes such keys and values; it runs on Ampere and later."""
    return (
        torch.device(device).type == "cuda"
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and dtype in (torch.bfloat16, torch.float16)
        and all(s.key_dim == s.value_dim for s in shapes if s.attends)
        and all(s.key_dim <= _MOST_HEAD_DIM and s.key_dim % _HEAD_DIM_STEP == 0 for s in shapes if s.attends)
    )


def pack(chunks: Sequence[Chunk], num_tokens: int, num_rows: int, padding_slot: int) -> Tensor:
    """All numbers that a pass is told, int32, for one transfer.

    Tokens beyond the chunks' are rows of their own, in the padding slot; rows beyond those are empty.
    """
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    padding = num_tokens - len(tokens)
    empty = num_rows - len(chunks) - padding
    begins = [0]
    for length in [len(chunk.token_ids) for chunk in chunks] + [1] * padding + [0] * empty:
        begins.append(begins[-1] + length)
    return torch.tensor(
        [
            *(*tokens, *[0] * padding),
            *(*(p for c in chunks for p in range(c.start, c.end)), *[0] * padding),
            *(*(c.slot for c in chunks for _ in c.token_ids), *[padding_slot] * padding),
            *(*(c.slot for c in chunks), *[padding_slot] * (padding + empty)),
            *(*(c.end for c in chunks), *[1] * padding, *[0] * empty),
            *begins,
        ],
        dtype=torch.int32,
    )


def packed_size(num_tokens: int, num_rows: int) -> int:
    return 3 * num_tokens + 3 * num_rows + 1


class VarlenPass:
    """A pass over what `pack` made of chunks, by then on the device: the host need not know it."""

    def __init__(
        self, store: PageStore, numbers: Tensor, num_tokens: int, num_rows: int, longest: int
    ) -> None:
        """`longest`: at least the tokens of each row; 1 where each has one, for a kernel of its own."""
        self._store = store
        self._longest = longest
        by_token, by_row = numbers[: 3 * num_tokens].view(3, -1), numbers[3 * num_tokens :]
        self.token_ids, self.positions, slots = by_token.long()
        self._lengths, self._begins = by_row[num_rows : 2 * num_rows], by_row[2 * num_rows :]
        self._places = store.places(slots, self.positions)
        self._recent = RecentInputs(slots, self.positions, store.places)
        self._tables = store.tables[by_row[:num_rows]]
        self._most_keys = self._tables.shape[1] * store.page_tokens
        # Where each row's keys would begin if they were packed. Asked for, and with tables not read.
        self._key_begins = (
            torch.arange(num_rows + 1, dtype=torch.int32, device=numbers.device) * self._most_keys
        )

    @classmethod
    def over(cls, store: PageStore, chunks: Sequence[Chunk]) -> "VarlenPass":
        """Over chunks as they are, without padding."""
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        numbers = to_device(pack(chunks, num_tokens, len(chunks), store.padding_slot), store.device)
        longest = max(len(chunk.token_ids) for chunk in chunks)
        return cls(store, numbers, num_tokens, len(chunks), longest)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        layer = layer_index(module)
        self._store.write(layer, self._places, key, value)
        output = varlen_attn(
            query[0].transpose(0, 1),
            self._store.keys[layer],
            self._store.values[layer],
            self._begins,
            self._key_begins,
            self._longest,
            self._most_keys,
            scale=scaling,
            window_size=self._visible(window, is_causal(module)),
            enable_gqa=True,
            seqused_k=self._lengths,
            block_table=self._tables,
            num_splits=_NUM_SPLITS,
        )
        assert isinstance(output, Tensor)  # no more was asked for
        return output[None]

    def recent(self, module: nn.Module, inputs: Tensor, length: int) -> Tensor:
        return self._recent.update(self._store.keys[layer_index(module)], inputs, length)

    def _visible(self, window: int | None, is_causal: bool) -> tuple[int, int]:
        """Keys (before, after) a query's own that it sees, -1 for all. Our windows count the query's own."""
        after = 0 if is_causal else -1  # -1: to the end of the row's keys, which its chunk is
        if window is not None:
            return window - 1, after
        # One query a row sees all its keys; said so, the heads that share keys are computed together.
        return (-1, -1) if self._longest == 1 else (-1, after)
