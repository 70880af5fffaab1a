"""A network's pass over many anchors of whole texts: an anchor's block sees what precedes it, and itself."""

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
    mask = block_mask(batch.seen, batch.places.shape[1], gamma)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return _attend(
            queries,
            torch.cat([known[layer][0], keys], dim=1),
            torch.cat([known[layer][1], values], dim=1),
            mask,
        )

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


def block_mask(seen: Tensor, context: int, gamma: int) -> Tensor:
    """[B, A * G, T + A * G]: True where a slot may look. `seen` [B, A] is the anchors' own positions."""
    num_texts, num_anchors = seen.shape
    before = torch.arange(context, device=seen.device) < seen[..., None]  # [B, A, T]
    before = before.repeat_interleave(gamma, dim=1)
    owner = torch.arange(num_anchors, device=seen.device).repeat_interleave(gamma)
    own = (owner[:, None] == owner).expand(num_texts, -1, -1)
    return torch.cat([before, own], dim=-1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Queries [B, Q, H, D], keys and values [B, K, H_kv, D] -> [B, Q, H, D]; a group's heads as queries."""
    num_texts, length, heads, width = queries.shape
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    by_group = cast(Tensor, queries.unflatten(2, (kv_heads, group)))
    grouped = by_group.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, H_kv, g * Q, D]
    output: Tensor = scaled_dot_product_attention(
        grouped.to(values.dtype),
        keys.transpose(1, 2).to(values.dtype),
        values.transpose(1, 2),
        attn_mask=mask.repeat(1, group, 1)[:, None],
    )
    output = output.unflatten(2, (group, length)).permute(0, 3, 1, 2, 4)
    return output.reshape(num_texts, length, heads, width)
