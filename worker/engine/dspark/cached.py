"""A DSpark network beside its target: its layers' keys and values are further layers of the target's cache.

They depend on the target's features and on positions alone, so what holds for a row's keys and values in the
target holds for these: rows share, move and give them up together.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from worker.engine.cache import Cache, Chunk, LayerShape
from worker.engine.contiguous import ContiguousCache
from worker.engine.cpu.attention import CompiledPass
from worker.engine.cpu.drafting import fused_layers, may_round, walk_of
from worker.engine.cpu.kernels import kernels_for
from worker.engine.cpu.linear import PackedLinear
from worker.engine.cpu.prepare import prepare
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork, Rotation
from worker.engine.transfer import to_device


def layer_shapes(config: DSparkConfig) -> list[LayerShape]:
    """What the network stores for each of a row's tokens."""
    return [LayerShape(config.num_kv_heads, config.head_dim, config.head_dim)] * config.num_layers


class CachedNetwork:
    def __init__(self, network: DSparkNetwork, cache: Cache, first_layer: int, context_limit: int) -> None:
        """Takes the network over. Its layers are those of the cache from `first_layer` on."""
        self.config = config = network.config
        self.token_ids = network.token_ids
        self.context_limit = context_limit
        weight = network.norm.weight
        self._device = str(weight.device)
        self._network, self._cache, self._first = network, cache, first_layer
        self._cosine, self._sine = network.rotation(torch.arange(context_limit, device=weight.device))
        self._layers = [_Layer(first_layer + i, config.is_causal_in(i)) for i in range(config.num_layers)]
        kernels = kernels_for(weight.dtype, self._device)
        int8 = may_round(kernels)
        self._walk = walk_of(network, kernels, int8=int8)
        self._fused = None
        if isinstance(cache, ContiguousCache) and cache.is_compiled:
            self._fused = fused_layers(network, first_layer, cache, kernels, int8=int8)
        if self._fused is not None:
            network.layers = nn.ModuleList()
        if int8:
            network.register_module("lm_head", PackedLinear(network.lm_head, kernels, int8=True))
        # What is left stays as it is: beside the outliers of features 8 bits hold little else.
        prepare(network, weight.dtype, self._device)

    def extend(self, chunks: Sequence[Chunk], features: Tensor) -> Tensor:
        """Store the keys and values of tokens whose features [T, m * d] the target's pass has shown.

        Their context [T, d], of which a network that feeds the last feature wants a row with each block.
        """
        slots = self._on_device([chunk.slot for chunk in chunks for _ in chunk.token_ids])
        positions = self._on_device([p for chunk in chunks for p in range(chunk.start, chunk.end)])
        context = self._network.context(features)
        if self._fused is not None:
            self._fused.store(context, slots, positions, (self._cosine, self._sine))
            return context
        parts = self._network.context_keys_values(context, self._rotation(positions))
        for index, (keys, values) in enumerate(parts):
            self._cache.write(self._first + index, slots, positions, keys, values)
        return context

    def erase(self, slot: int, length: int) -> None:
        """Zeros in the place of what is not finite, which must not outlive its row.

        Of its first `length` positions, which all must have been reserved.
        """
        slots, positions = self._on_device([slot] * length), self._on_device(range(length))
        for index, shape in enumerate(layer_shapes(self.config)):
            zeros = self._cosine.new_zeros(length, shape.kv_heads, shape.key_dim)
            self._cache.write(self._first + index, slots, positions, zeros, zeros)

    def run_blocks(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        anchors: Sequence[int],
        length: int,
        last: Tensor | None = None,
    ) -> Tensor:
        """H [R, length, d] of blocks that begin with anchors, up to block_size long; raises CacheFull.

        `last` [R, d] is the context of the positions before them, where the network feeds it. A block's keys
        and values are written where those of the tokens to come will be.
        """
        inputs = self.config.inputs_for(length)
        masks = [self.config.mask_token_id] * (inputs - 1)
        chunks = [
            Chunk(slot, start, [anchor, *masks], num_logits=0)
            for slot, start, anchor in zip(slots, starts, anchors, strict=True)
        ]
        self._cache.reserve(chunks)
        layout = self._cache.layout(chunks)
        tokens = self._on_device([token for chunk in chunks for token in chunk.token_ids])
        if last is not None:
            last = last.repeat_interleave(inputs, dim=0)
        embedded, rotation = self._network.start(tokens, last), self._rotation(layout.positions)
        if self._fused is not None and isinstance(layout, CompiledPass) and layout.table is not None:
            hidden = self._network.norm(self._fused.run(embedded, rotation, layout.table))
        else:

            def attend(index: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                q, k, v = (part.transpose(0, 1)[None] for part in (queries, keys, values))
                return layout.attend(self._layers[index], q, k, v, None, self.config.window_of(index))[0]

            hidden = self._network(embedded, rotation, attend)
        return hidden.view(len(chunks), inputs, -1)[:, inputs - length :]

    def logits(self, hidden: Tensor) -> Tensor:
        """U [..., draft vocabulary], to which the Markov head adds."""
        return self._network.lm_head(hidden)

    def guess(self, logits: Tensor, anchors: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Tokens [R, G] of logits [R, G, draft vocabulary], the most likely ones, one after the other.

        And embeddings [R, G, rank] of those before them; None where `bias` has to be asked at each position.
        """
        if self._walk is None:
            return None
        return self._walk.guess(logits, self.token_ids, self._on_device(anchors))

    def bias(
        self, previous: Tensor, hidden: Tensor, state: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What tokens [R] make likely next, their embeddings, and the head's state; None without a head."""
        head = self._network.markov_head
        if head is None:
            return None, None, None
        embedded = head.embed(previous)
        bias, state = head(embedded, hidden, state)
        return bias, embedded, state

    def confidence(self, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
        """In logits [...]; None if the network has no such head."""
        head = self._network.confidence_head
        return None if head is None else cast(Tensor, head(hidden, embedded))

    def _rotation(self, positions: Tensor) -> Rotation:
        return self._cosine[positions], self._sine[positions]

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.int64), self._device)


class _Layer(nn.Module):
    """Says to a pass what it asks of attention modules."""

    def __init__(self, index: int, is_causal: bool) -> None:
        super().__init__()
        self.layer_idx, self.is_causal = index, is_causal
