"""The network of DSpark and DFlash (arXiv 2607.05147): its parameters are named as in public checkpoints.

Attention and the cache are the caller's: drafting has a cache of rows, training has masks over whole texts.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.heads import ConfidenceHead, MarkovHead

Rotation = tuple[Tensor, Tensor]  # cosine and sine, [..., head_dim]
# (layer, queries [..., T, H, D], keys and values of the block [..., T, H_kv, D]) -> [..., T, H, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class DSparkNetwork(nn.Module):
    """`embed_tokens` and `lm_head` may be the target's own: see `use_tokens_of`."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.fc = nn.Linear(config.num_features, d, bias=False)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(d, eps)
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        self.lm_head = nn.Linear(d, config.draft_vocab_size, bias=False)
        self.start_proj = nn.Linear(2 * d, d, bias=False) if config.feeds_last_feature else None
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.has_confidence else None
        # The target's id of each token of the draft vocabulary; on disk as an offset, `d2t`.
        self.register_buffer("token_ids", torch.arange(config.draft_vocab_size), persistent=False)
        self.token_ids: Tensor

    def context(self, features: Tensor) -> Tensor:
        """C = hidden_norm(fc(F)): [..., m * d] -> [..., d]."""
        return self.hidden_norm(self.fc(features))

    def context_keys_values(self, context: Tensor, rotation: Rotation) -> list[tuple[Tensor, Tensor]]:
        """By layer, keys and values [..., T, H_kv, D] of context [..., T, d]: what a draft cache holds."""
        return [layer.self_attn.keys_values(context, rotation) for layer in self._layers]

    def rotation(self, positions: Tensor) -> Rotation:
        """Of positions [...], in float32 and then in the network's dtype: [..., head_dim]."""
        half = torch.arange(0, self.config.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.config.rope_theta ** (-half / self.config.head_dim)
        if self.config.rope_interleaved:
            angles = angles.repeat_interleave(2, dim=-1)
        else:
            angles = torch.cat([angles, angles], dim=-1)
        dtype = self.norm.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def start(self, tokens: Tensor, last: Tensor | None) -> Tensor:
        """What goes into the layers [..., T, d] for a block's tokens [..., T]: the anchor, then masks.

        `last` [..., T, d] is the context of the position before the block's anchor, for each of its tokens.
        """
        embedded = self.embed_tokens(tokens)
        if self.start_proj is None or last is None:
            return embedded
        return self.start_proj(torch.cat([embedded, last], dim=-1))

    def forward(self, embedded: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """H [..., T, d] of a block's tokens, as they start [..., T, d]."""
        x = embedded
        for index, layer in enumerate(self._layers):
            x = layer(x, rotation, partial(attend, index))
        return self.norm(x)

    def use_tokens_of(self, embeddings: Tensor, head: Tensor) -> None:
        """Take over the target's embeddings [V, d], and of its head [V, d] the draft vocabulary's rows."""
        self.embed_tokens.weight = nn.Parameter(embeddings, requires_grad=False)
        rows = head if len(head) == len(self.token_ids) else head[self.token_ids]
        self.lm_head.weight = nn.Parameter(rows, requires_grad=False)

    @property
    def _layers(self) -> list["_Layer"]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]


class _Layer(nn.Module):
    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)

    def forward(
        self, x: Tensor, rotation: Rotation, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Attention(nn.Module):
    """Keys and values come from the block's own tokens, and as well from context that is not normed here."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        d, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self._dim, self._interleaved = dim, config.rope_interleaved
        self.q_proj = nn.Linear(d, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(d, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(d, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, d, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(dim, eps), nn.RMSNorm(dim, eps)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        keys = self._rotate(self.k_norm(self._heads(self.k_proj(x))), rotation)
        return keys, self._heads(self.v_proj(x))

    def forward(
        self, h: Tensor, rotation: Rotation, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        queries = self._rotate(self.q_norm(self._heads(self.q_proj(h))), rotation)
        return self.o_proj(attend(queries, *self.keys_values(h, rotation)).flatten(-2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._dim))

    def _rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        cosine, sine = (part[..., None, :] for part in rotation)
        if self._interleaved:
            pairs = x.unflatten(-1, (-1, 2))
            turned = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            turned = torch.cat([-second, first], dim=-1)
        return x * cosine + turned * sine


class _Mlp(nn.Module):
    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(d, inner, bias=False)
        self.up_proj = nn.Linear(d, inner, bias=False)
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
