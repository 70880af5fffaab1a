"""Weights of fewer bits: rounded by us on a CPU, by bitsandbytes on CUDA, or as a checkpoint brings them."""

from typing import Any, cast

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel

from worker.engine.errors import ModelLoadError
from worker.engine.types import DType, Quantization

_BITS: dict[Quantization, int] = {"int8": 8, "bitsandbytes-8bit": 8, "bitsandbytes-4bit": 4}


def check_quantization(
    name: str, config: PreTrainedConfig, wanted: Quantization | None, dtype: DType, device: str
) -> None:
    """Raise ModelLoadError, saying what to do, if a model cannot be loaded so on the device."""
    on_cuda = torch.device(device).type == "cuda"
    method = _own_method(config)
    if method and wanted:
        raise ModelLoadError(
            f'{name} is quantized already, by {method}: take quantization = "{wanted}" out of the pair'
        )
    if method and not on_cuda:
        raise ModelLoadError(
            f"{name} is quantized by {method}, which runs on CUDA only, and the device is {device}: "
            'choose the model as it was before, with quantization = "int8" if it is to be smaller'
        )
    if wanted == "int8" and (on_cuda or dtype == "float64"):
        raise ModelLoadError(
            f'quantization = "int8" is for float32, bfloat16 and float16 on a CPU, and {name} is to run in '
            f'{dtype} on {device}: on CUDA there are "bitsandbytes-8bit" and "bitsandbytes-4bit"'
        )
    if wanted and wanted != "int8" and not on_cuda:
        raise ModelLoadError(
            f'quantization = "{wanted}" runs on CUDA only, and the device of {name} is {device}: use "int8"'
        )


def loading_arguments(
    config: PreTrainedConfig, wanted: Quantization | None, dtype: DType, device: str
) -> dict[str, Any]:
    """Of `from_pretrained`, where transformers loads quantized weights: onto the device, and nowhere else."""
    if wanted == "bitsandbytes-8bit":
        quantized = BitsAndBytesConfig(load_in_8bit=True)
    elif wanted == "bitsandbytes-4bit":
        quantized = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
        )
    else:
        return {"device_map": {"": device}} if _own_method(config) else {}
    return {"quantization_config": quantized, "device_map": {"": device}}


def weight_bytes(model: PreTrainedModel, wanted: Quantization | None, width: int) -> int:
    """What a model's weights take, at `width` bytes where they are not quantized."""
    bits = _BITS[wanted] if wanted else _own_bits(model.config)
    sizes = {id(parameter): parameter.numel() * width for parameter in model.parameters()}
    if bits is None:
        return sum(sizes.values())
    embedding, last = model.get_input_embeddings().weight, model.get_output_embeddings()
    for module in model.modules():
        # All methods but ours leave the last layer, the output embedding, as it is.
        if isinstance(module, nn.Linear) and (wanted == "int8" or module is not last):
            tied = module.weight is embedding
            sizes[-id(module) if tied else id(module.weight)] = module.weight.numel() * bits // 8
    return sum(sizes.values())


def _own_method(config: PreTrainedConfig) -> str | None:
    return _own_settings(config).get("quant_method")


def _own_bits(config: PreTrainedConfig) -> int | None:
    settings = _own_settings(config)
    if settings.get("load_in_4bit"):
        return 4
    if settings.get("load_in_8bit"):
        return 8
    bits = settings.get("bits")
    return bits if isinstance(bits, int) else None


def _own_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """What a checkpoint says of its quantization."""
    settings = getattr(config, "quantization_config", None) or {}
    return cast(dict[str, Any], settings if isinstance(settings, dict) else settings.to_dict())
