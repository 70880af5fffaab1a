"""The network computes the paper's equations (arXiv 2607.05147), written out here head by head in float64."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.worker.engine.dspark.drafters import CONFIG, random_network, target_facts
from worker.engine.dspark.config import DSparkConfig, MarkovKind
from worker.engine.dspark.network import DSparkNetwork

CONTEXT, BLOCK = 7, 5


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Angles are computed in float32, for all dtypes."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=["halves", "neighbours"])
def network(request: pytest.FixtureRequest) -> DSparkNetwork:
    config = replace(CONFIG, rope_interleaved=request.param == "neighbours", rope_theta=100.0)
    network, target = random_network(config, torch.float64), target_facts(torch.float64)
    network.use_tokens_of(target.embeddings, target.head)
    return network


def attend_to(context: list[tuple[Tensor, Tensor]], heads_per_kv: int) -> Callable[..., Tensor]:
    """Attention of a block [T, H, D] over a context's keys and values and all of its own, unmasked."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = (
            torch.cat([past, own]).repeat_interleave(heads_per_kv, dim=1)
            for past, own in zip(context[layer], (keys, values), strict=True)
        )
        scores = torch.einsum("thd,shd->hts", queries, keys) / queries.shape[-1] ** 0.5
        return torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values)

    return attend


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def rotate(x: Tensor, position: int, config: DSparkConfig) -> Tensor:
    """Of one head [D], as complex numbers: neighbours are a pair, or else an entry of each half."""
    dim = config.head_dim
    angles = position * config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    parts = x.reshape(-1, 2).T if config.rope_interleaved else x.reshape(2, -1)
    turned = torch.complex(parts[0], parts[1]) * torch.polar(torch.ones_like(angles), angles)
    pairs = torch.stack([turned.real, turned.imag])
    return pairs.T.flatten() if config.rope_interleaved else pairs.flatten()


def expected_output(network: DSparkNetwork, features: Tensor, embedded: Tensor) -> Tensor:
    """H [T, d] of a block at positions s..., after features [s, m * d] of those before the anchor."""
    c, w = network.config, network.state_dict()
    eps, length = c.rms_norm_eps, len(features)
    context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    x = embedded
    for layer in range(c.num_layers):
        p = {key.removeprefix(f"layers.{layer}."): t for key, t in w.items() if f"layers.{layer}." in key}
        h = norm(x, p["input_layernorm.weight"], eps)
        sources = torch.cat([context, h])  # the context is not layer-normed
        attended = torch.zeros(len(x), c.num_heads, c.head_dim, dtype=torch.float64)
        for head in range(c.num_heads):
            rows = slice(head * c.head_dim, (head + 1) * c.head_dim)
            kv = head // (c.num_heads // c.num_kv_heads)
            kv_rows = slice(kv * c.head_dim, (kv + 1) * c.head_dim)
            q = norm(h @ p["self_attn.q_proj.weight"][rows].T, p["self_attn.q_norm.weight"], eps)
            k = norm(sources @ p["self_attn.k_proj.weight"][kv_rows].T, p["self_attn.k_norm.weight"], eps)
            v = sources @ p["self_attn.v_proj.weight"][kv_rows].T
            k = torch.stack([rotate(row, position, c) for position, row in enumerate(k)])
            for slot, row in enumerate(q):
                weights = (k @ rotate(row, length + slot, c) / c.head_dim**0.5).softmax(dim=0)
                attended[slot, head] = weights @ v
        x = x + attended.flatten(1) @ p["self_attn.o_proj.weight"].T
        h = norm(x, p["post_attention_layernorm.weight"], eps)
        gate, up = h @ p["mlp.gate_proj.weight"].T, h @ p["mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ p["mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"], eps)


def test_a_block_attends_to_the_context_before_it_and_to_all_of_itself(network: DSparkNetwork) -> None:
    features = drawn(CONTEXT, network.config.num_features)
    embedded = network.embed_tokens(torch.tensor([17] + [network.config.mask_token_id] * (BLOCK - 1)))

    context = network.context_keys_values(network.context(features), network.rotation(torch.arange(CONTEXT)))
    positions = network.rotation(CONTEXT + torch.arange(BLOCK))
    output = network(embedded, positions, attend_to(context, heads_per_kv=2))

    assert_close(output, expected_output(network, features, embedded))


def test_without_context_a_block_attends_to_itself_alone(network: DSparkNetwork) -> None:
    embedded = network.embed_tokens(torch.tensor([17, 39]))
    nothing = torch.zeros(0, network.config.num_features, dtype=torch.float64)

    context = network.context_keys_values(network.context(nothing), network.rotation(torch.arange(0)))
    output = network(embedded, network.rotation(torch.arange(2)), attend_to(context, heads_per_kv=2))

    assert_close(output, expected_output(network, nothing, embedded))


def test_of_the_targets_head_a_reduced_vocabulary_takes_its_own_rows() -> None:
    network, target = random_network(replace(CONFIG, draft_vocab_size=12)), target_facts()

    network.use_tokens_of(target.embeddings, target.head)

    assert torch.equal(network.lm_head.weight, target.head[network.token_ids])
    assert network.embed_tokens.weight.data_ptr() == target.embeddings.data_ptr()


@pytest.mark.parametrize("kind", get_args(MarkovKind))
def test_a_markov_head_biases_by_the_token_before(kind: MarkovKind) -> None:
    config = replace(CONFIG, markov_kind=kind, draft_vocab_size=12)
    head = random_network(config, torch.float64).markov_head
    assert head is not None
    previous, hidden = torch.tensor([3, 0, 39]), drawn(3, config.hidden_size)

    biases: list[Tensor] = []
    state = None
    for k in range(3):
        bias, state = head(head.embed(previous[k]), hidden[k], state)
        biases.append(bias)

    w = head.state_dict()
    e = w["markov_w1.weight"][previous]
    if kind == "vanilla":
        inner = e
    elif kind == "gated":
        inner = (torch.cat([hidden, e], 1) @ w["gate_proj.weight"].T + w["gate_proj.bias"]).sigmoid() * e
    else:
        rank, s = config.markov_rank, torch.zeros(config.markov_rank, dtype=torch.float64)
        inner = torch.empty(3, rank, dtype=torch.float64)
        for k in range(3):
            z = w["joint_proj.weight"] @ torch.cat([s, e[k], hidden[k]]) + w["joint_proj.bias"]
            g = z[:rank].sigmoid()
            s = g * s + (1 - g) * z[rank : 2 * rank].tanh()
            inner[k] = z[2 * rank :].tanh()
    torch.testing.assert_close(torch.stack(biases), inner @ w["markov_w2.weight"].T)


@pytest.mark.parametrize("with_markov", [True, False])
def test_confidence_is_linear_in_the_output_and_the_token_before(with_markov: bool) -> None:
    config = replace(CONFIG, confidence_with_markov=with_markov)
    head = random_network(config, torch.float64).confidence_head
    assert head is not None
    hidden, embedded = drawn(2, config.hidden_size), drawn(2, config.markov_rank)

    logits = head(hidden, embedded)

    inputs = torch.cat([hidden, embedded], dim=1) if with_markov else hidden
    expected = inputs @ head.proj.weight[0] + head.proj.bias
    torch.testing.assert_close(logits, expected)
