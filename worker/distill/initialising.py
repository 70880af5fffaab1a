"""A network to begin with: what the target does last, and what its tokens alone make likely.

In a short run this is worth more than anything else: from random weights a drafter learns little in an hour.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from worker.distill.text import Text
from worker.engine.dspark.checkpoints import TargetFacts
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import EngineError
from worker.engine.loading import LoadedModel

_MEASURED_TEXTS = 8
_FITTED_TEXTS = 300


def make_config(
    loaded: LoadedModel,
    taps: tuple[int, ...],
    layers: int,
    gamma: int,
    rank: int,
    draft_vocab: int,
    mask: int,
) -> DSparkConfig:
    """Of a network as wide as its target."""
    facts = TargetFacts.of(loaded)
    config = cast(Any, loaded.model).config.get_text_config()
    rope = cast(dict[str, Any], getattr(config, "rope_parameters", None) or {})
    return DSparkConfig(
        hidden_size=facts.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        feeds_last_feature=True,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=facts.vocab_size,
        draft_vocab_size=draft_vocab,
        taps=taps,
        block_size=gamma,
        mask_token_id=mask,
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        rms_norm_eps=config.rms_norm_eps,
        markov_rank=rank,
        has_confidence=True,
        num_target_layers=facts.num_layers,
        target=facts.name,
    )


def initialise(
    config: DSparkConfig,
    loaded: LoadedModel,
    texts: Sequence[Text],
    draft_ids: Tensor,
    factors: tuple[Tensor, Tensor],
    seed: int,
) -> DSparkNetwork:
    """In float32; `factors` are the Markov head's W1 and W2. Raises EngineError if the target has others."""
    torch.manual_seed(seed)
    network = DSparkNetwork(config)
    facts = TargetFacts.of(loaded)
    network.token_ids.copy_(draft_ids)
    network.use_tokens_of(facts.embeddings.float().cpu(), facts.head.float().cpu())
    tensors = {name: tensor.float() for name, tensor in loaded.model.state_dict().items()}
    first = facts.num_layers - config.num_layers
    prefix = layers_prefix(loaded)
    scales = _query_key_scales(loaded, prefix, range(first, facts.num_layers), texts)
    with torch.no_grad():
        for index, layer in enumerate(network.layers):
            for name, parameter in layer.named_parameters():
                source = tensors.get(f"{prefix}layers.{first + index}.{name}")
                if source is not None and source.shape == parameter.shape:
                    parameter.copy_(source)
                elif name in scales[index]:
                    parameter.fill_(scales[index][name])
        network.hidden_norm.weight.copy_(tensors[f"{prefix}layers.{first}.input_layernorm.weight"])
        network.norm.weight.copy_(tensors[f"{prefix}norm.weight"])
        nn.init.normal_(network.fc.weight, std=0.02 / len(config.taps))
        network.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
        if network.start_proj is not None:
            network.start_proj.weight.copy_(_fitted_start(network, texts[:_FITTED_TEXTS]))
        if network.markov_head is not None:
            network.markov_head.markov_w1.weight.copy_(factors[0])
            network.markov_head.markov_w2.weight.copy_(factors[1])
        if network.confidence_head is not None:
            nn.init.zeros_(network.confidence_head.proj.weight)
            nn.init.zeros_(network.confidence_head.proj.bias)
    return network


def layers_prefix(loaded: LoadedModel) -> str:
    """Of the names of the target's layers. Raises EngineError if a network is not made of such."""
    names = loaded.model.state_dict().keys()
    ending = "layers.0.input_layernorm.weight"
    for name in names:
        if name.endswith(ending) and f"{name.removesuffix(ending)}layers.0.self_attn.q_proj.weight" in names:
            return name.removesuffix(ending)
    raise EngineError(
        f"the layers of {loaded.name} are not of the kind a DSpark network is made of "
        "(input_layernorm, self_attn, mlp): it cannot begin as their copy"
    )


def _fitted_start(network: DSparkNetwork, texts: Sequence[Text]) -> Tensor:
    """[d, 2 * d]: least squares of what the target's last layers get at a block's positions.

    From what the block has: a token's embedding (the anchor's, or the mask's), and the context before it.
    """
    config = network.config
    width = config.hidden_size
    squares, products = torch.zeros(2 * width, 2 * width), torch.zeros(2 * width, width)
    for text in texts:
        features = text.features.float()
        context = network.context(features)
        for slot in range(config.block_size):
            anchors = torch.arange(text.prompt_tokens, len(features) - slot)
            tokens = (
                text.tokens[anchors].long() if slot == 0 else torch.full_like(anchors, config.mask_token_id)
            )
            known = torch.cat([network.embed_tokens(tokens), context[anchors - 1]], dim=-1)
            weight = math.exp(-slot / 2)
            squares += weight * known.t() @ known
            products += weight * known.t() @ features[anchors + slot, -width:]
    squares += torch.eye(2 * width) * squares.diagonal().mean() * 1e-3
    return torch.linalg.solve(squares, products).t()


def _query_key_scales(
    loaded: LoadedModel, prefix: str, layers: range, texts: Sequence[Text]
) -> list[dict[str, float]]:
    """By layer, what q_norm and k_norm must multiply by to make heads as long as the target's."""
    model = cast(nn.Module, loaded.model)
    noted: dict[tuple[int, str], list[Tensor]] = {}
    hooks: list[Any] = []
    for index, layer in enumerate(layers):
        for name in ("q", "k"):
            module = model.get_submodule(f"{prefix}layers.{layer}.self_attn.{name}_proj")
            seen = noted.setdefault((index, f"self_attn.{name}_norm.weight"), [])
            hooks.append(module.register_forward_hook(_noting(seen)))
    with torch.inference_mode():
        for text in texts[:_MEASURED_TEXTS]:
            loaded.model(input_ids=text.tokens.long()[None].to(loaded.model.device))
    for hook in hooks:
        hook.remove()
    scales: list[dict[str, float]] = [{} for _ in layers]
    for (index, name), outputs in noted.items():
        values = torch.cat([output.flatten() for output in outputs])
        scales[index][name] = float(values.float().square().mean().sqrt())
    return scales


def _noting(seen: list[Tensor]) -> Any:
    def note(_module: nn.Module, _arguments: Any, output: Tensor) -> None:
        seen.append(output.detach())

    return note
