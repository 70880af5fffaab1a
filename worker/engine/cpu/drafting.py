"""A DSpark network by kernels: its layers in one call, its block's tokens in another."""

from ctypes import addressof, byref
from typing import Any, cast

import torch
from torch import Tensor, nn

from worker.engine.attention import Buffers
from worker.engine.cpu.kernels import LANES, LARGEST_KEY, PANEL, Context, Kernels
from worker.engine.cpu.passes import LayerParts, Layers, LayerSizes, addresses
from worker.engine.cpu.products import PanelProduct, product_of
from worker.engine.dspark.network import DSparkNetwork, Rotation


class FusedLayers:
    """Does what the network's layers do; these are not needed any more."""

    def __init__(
        self, network: DSparkNetwork, first: int, cache: Buffers, kernels: Kernels, *, int8: bool
    ) -> None:
        """`first` is the number of the first of them in the cache. With `int8` weights are rounded."""
        self._cache = cache
        config = network.config
        layers = [cast(Any, layer) for layer in network.layers]
        attentions = [layer.self_attn for layer in layers]
        parts = [_parts(network, i, kernels, int8) for i in range(len(layers))]
        self._layers = Layers(parts, first, kernels)
        projections = [*(a.k_proj for a in attentions), *(a.v_proj for a in attentions)]
        self._keys_values = product_of(cast(list[nn.Linear], projections), kernels, int8=int8)
        self._key_norms = torch.stack([a.k_norm.weight for a in attentions])
        self._cached = slice(first, first + len(layers))
        self._shape = len(layers), config.num_kv_heads, config.head_dim
        self._epsilon, self._kernels = config.rms_norm_eps, kernels

    def run(self, x: Tensor, rotation: Rotation, chunks: Tensor) -> Tensor:
        """x [T, d] after the layers; `chunks` as attention takes them."""
        cosine, sine = rotation
        return self._layers.run(x[None], (cosine[None], sine[None]), self._cache, chunks)[0][0]

    def store(self, context: Tensor, slots: Tensor, positions: Tensor, rotation: Rotation) -> None:
        """Keys and values of context [T, d], into all layers' caches; `rotation` is of every position."""
        keys_values = self._keys_values(context)
        keys, values = (addresses(part[self._cached]) for part in (self._cache.keys, self._cache.values))
        parts = (keys_values, self._key_norms, *rotation, slots, positions)
        capacity = self._cache.keys[self._cached.start].shape[2]
        self._kernels.store_context(
            byref(
                Context(
                    *(part.data_ptr() for part in parts),
                    *(addressof(keys), addressof(values)),
                    *(len(context), *self._shape, capacity, self._epsilon),
                )
            )
        )


class Walk:
    """What a vanilla Markov head makes of a block's logits, token by token, in one call of a kernel."""

    def __init__(self, network: DSparkNetwork, kernels: Kernels, *, int8: bool) -> None:
        head = cast(Any, network.markov_head)
        self._embeddings: Tensor = head.markov_w1.weight.detach().contiguous()
        self._product = PanelProduct(head.markov_w2.weight.detach(), None, kernels, int8=int8)
        self._kernels = kernels

    @property
    def is_int8(self) -> bool:
        """Whether its product is one of integers."""
        return self._product.int8

    def guess(self, logits: Tensor, token_ids: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely tokens [R, G] of logits [R, G, draft vocabulary], and embeddings [R, G, rank]."""
        return self._kernels.walk(
            logits.contiguous(),
            self._embeddings,
            self._product.weights,
            token_ids,
            anchors,
            int8=self.is_int8,
        )


def walk_of(network: DSparkNetwork, kernels: Kernels | None, *, int8: bool) -> Walk | None:
    """None for another head or sizes that the kernel does not take."""
    config = network.config
    if kernels is None or not kernels.can_multiply or config.markov_kind != "vanilla":
        return None
    if not config.markov_rank or config.markov_rank % 2 or config.draft_vocab_size % LANES:
        return None
    return Walk(network, kernels, int8=int8 and config.markov_rank % kernels.int8_multiple == 0)


def may_round(kernels: Kernels | None) -> bool:
    """Whether a drafter's layers and heads become 8 bits: a guess may err a little, and is there sooner.

    A product of 5 rows by a head of 16,384 took 0.55 of the time that it takes in bfloat16 with matrix tiles,
    0.45 without, and 0.3 of that in float32; of 160 rows no longer.
    """
    return kernels is not None and kernels.int8_step > 0


def fused_layers(
    network: DSparkNetwork, first: int, cache: Buffers, kernels: Kernels | None, *, int8: bool
) -> FusedLayers | None:
    """None for sizes or a rotation that the kernel does not take, or where another product is the faster."""
    config = network.config
    sizes = config.hidden_size, config.intermediate_size, config.head_dim
    if kernels is None or not kernels.can_multiply or config.rope_interleaved:
        return None
    if any(size % PANEL for size in sizes) or config.head_dim > LARGEST_KEY:
        return None
    if not isinstance(product_of([cast(Any, network.layers[0]).self_attn.o_proj], kernels), PanelProduct):
        return None
    depths = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    int8 = int8 and not any(depth % kernels.int8_multiple for depth in depths)
    return FusedLayers(network, first, cache, kernels, int8=int8)


def _parts(network: DSparkNetwork, index: int, kernels: Kernels, int8: bool) -> LayerParts:
    config, layer = network.config, cast(Any, network.layers[index])
    attention, mlp = layer.self_attn, layer.mlp

    def product(*layers: nn.Linear) -> PanelProduct:
        return PanelProduct(torch.cat([layer.weight for layer in layers]), None, kernels, int8=int8)

    return LayerParts(
        LayerSizes(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.rms_norm_eps,
        ),
        layer.input_layernorm.weight,
        layer.post_attention_layernorm.weight,
        attention.q_norm.weight,
        attention.k_norm.weight,
        product(attention.q_proj, attention.k_proj, attention.v_proj),
        product(attention.o_proj),
        product(mlp.gate_proj, mlp.up_proj),
        product(mlp.down_proj),
        config.window_of(index),
        config.head_dim**-0.5,
        config.is_causal_in(index),
    )
