"""The tensors of a checkpoint, and a network made of them."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from worker.engine.dspark.checkpoints.target import TargetFacts
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import ModelLoadError


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a folder's *.safetensors, of one file or of several with an index."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            files = [folder / str(file) for file in sorted(names)]
        else:
            files = sorted(folder.glob("*.safetensors"))
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors.update(load_file(file))
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise ModelLoadError(f"cannot read the weights of the drafter {name}: {error}") from error
    if not tensors:
        raise ModelLoadError(
            f"the drafter {name} has no *.safetensors, and nothing else is read: a pickle could run code"
        )
    return tensors


def build_network(
    config: DSparkConfig, tensors: dict[str, Tensor], target: TargetFacts, name: str
) -> DSparkNetwork:
    """A network in eval mode, in the dtype and on the device of the target, which lends it what it lacks.

    `tensors` are named as the network's parameters, with `d2t` and `t2d` where the draft vocabulary is
    reduced. Raises ModelLoadError for any that is missing, unexpected, or of another shape.
    """
    tensors = dict(tensors)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    token_ids = _token_ids(config, d2t, t2d, name)
    with torch.device("meta"):
        network = DSparkNetwork(config)
    dtype, device = target.embeddings.dtype, target.embeddings.device
    weights = {key: tensor.to(device, dtype) for key, tensor in tensors.items()}
    is_whole = config.draft_vocab_size == config.vocab_size
    head = target.head if is_whole else target.head[token_ids.to(target.head.device)]
    for key, table in (("embed_tokens.weight", target.embeddings), ("lm_head.weight", head)):
        if key not in weights or torch.equal(weights[key], table):  # many store a copy: it is not kept twice
            weights[key] = table
    _check_names(network.state_dict(), weights, name)
    network.load_state_dict(weights, assign=True)
    network.token_ids = token_ids.to(device)
    return network.requires_grad_(False).eval()


def _token_ids(config: DSparkConfig, d2t: Tensor | None, t2d: Tensor | None, name: str) -> Tensor:
    """The target's id of each draft token: d2t holds by how much it is the greater."""
    size = config.draft_vocab_size
    own = torch.arange(size)
    if d2t is None:
        if size != config.vocab_size:
            raise ModelLoadError(
                f"the drafter {name} proposes {size} of {config.vocab_size} tokens, but has no tensor d2t "
                "that says which"
            )
        return own
    if d2t.shape != own.shape:
        raise ModelLoadError(
            f"the tensor d2t of the drafter {name} has shape {list(d2t.shape)}: [{size}] was expected"
        )
    ids = own + d2t.to(own)
    is_token = (ids >= 0) & (ids < config.vocab_size)
    if not bool(is_token.all()) or int(ids.bincount().max()) > 1:
        raise ModelLoadError(
            f"the tensor d2t of the drafter {name} does not lead to {size} different tokens of "
            f"{config.vocab_size}: it must hold offsets (target's id minus draft's id)"
        )
    if t2d is not None and not torch.equal(t2d.bool().nonzero()[:, 0], ids.sort().values):
        raise ModelLoadError(f"the tensors t2d and d2t of the drafter {name} name different tokens")
    return ids


def _check_names(expected: dict[str, Tensor], found: dict[str, Tensor], name: str) -> None:
    for what, keys in (
        ("lacks", sorted(expected.keys() - found.keys())),
        ("has, beside what its config describes,", sorted(found.keys() - expected.keys())),
    ):
        if keys:
            raise ModelLoadError(f"the drafter {name} {what} {len(keys)} tensors, {keys[0]} among them")
    for key, tensor in expected.items():
        if tensor.shape != found[key].shape:
            raise ModelLoadError(
                f"the tensor {key} of the drafter {name} has shape {list(found[key].shape)}: "
                f"its config says {list(tensor.shape)}"
            )
