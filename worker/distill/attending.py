"""A network's pass over many anchors of whole texts: an anchor's block sees what precedes it, and itself."""

from typing import cast

import torch
from torch import Tensor

from worker.distill.batches import Batch
from worker.engine.dspark.network import DSparkNetwork


def block_outputs(network: DSparkNetwork, batch: Batch) -> Tensor:
    """H [B, A, G, d] of every anchor's block."""
    gamma = network.config.block_size
    num_texts, num_anchors = batch.seen.shape
    context = network.context(batch.features.to(network.norm.weight.dtype))
    rotation = network.rotation(batch.positions)
    known = [
        (keys[batch.places], values[batch.places])
        for keys, values in network.context_keys_values(context, rotation)
    ]
    hidden_from = _hidden_from(batch.seen, batch.places.shape[1])

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return _attend(queries, known[layer], (keys, values), hidden_from)

    inputs = torch.full(
        (num_texts, num_anchors, gamma), network.config.mask_token_id, device=batch.inputs.device
    )
    inputs[..., 0] = batch.inputs
    positions = batch.seen[..., None] + torch.arange(gamma, device=batch.seen.device)
    before = batch.places.gather(1, (batch.seen - 1).clamp(min=0))  # of each anchor, among all positions
    last = context[before][:, :, None].expand(-1, -1, gamma, -1)
    started = network.start(inputs, last).to(network.norm.weight.dtype)
    hidden = network(started.flatten(1, 2), network.rotation(positions.flatten(1, 2)), attend)
    return hidden.unflatten(1, (num_anchors, gamma))


def _hidden_from(seen: Tensor, context: int) -> Tensor:
    """[B, A, T]: True where an anchor's block may not look. `seen` [B, A] is the anchors' own positions."""
    return torch.arange(context, device=seen.device) >= seen[..., None]


def _attend(
    queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], hidden_from: Tensor
) -> Tensor:
    """Queries [B, A * G, H, D] -> [B, A * G, H, D]: over what precedes their anchor, and their own block.

    Keys and values are [B, T, H_kv, D] of the context, and [B, A * G, H_kv, D] of the blocks. One softmax
    over both parts: a mask over all blocks' keys would have most of the products thrown away.
    """
    _, num_anchors, length = hidden_from.shape
    _, _, kv_heads, width = context[0].shape
    keys, values = (part.transpose(1, 2) for part in context)  # [B, H_kv, T, D]
    dtype = values.dtype
    # [B, A, G, H_kv, g, D] -> [B, H_kv, A, G * g, D]: a group's heads as queries
    gamma, group = queries.shape[1] // num_anchors, queries.shape[2] // kv_heads
    split = cast(Tensor, queries.unflatten(1, (num_anchors, gamma)).unflatten(3, (kv_heads, group)))
    grouped = (split.permute(0, 3, 1, 2, 4, 5) * width**-0.5).to(dtype).flatten(3, 4)
    own_keys, own_values = (part.unflatten(1, (num_anchors, -1)).permute(0, 3, 1, 2, 4) for part in block)
    scores = (grouped.flatten(2, 3) @ keys.to(dtype).transpose(2, 3)).unflatten(2, (num_anchors, -1))
    scores = scores.masked_fill(hidden_from[:, None, :, None], -torch.inf)
    own_scores = grouped @ own_keys.to(dtype).transpose(3, 4)
    shares = torch.cat([scores, own_scores], dim=-1).softmax(dim=-1)
    of_context = (shares[..., :length].flatten(2, 3) @ values).unflatten(2, (num_anchors, -1))
    output: Tensor = of_context + shares[..., length:] @ own_values
    output = output.unflatten(3, (gamma, group))
    return output.permute(0, 2, 3, 1, 4, 5).flatten(3, 4).flatten(1, 2)
