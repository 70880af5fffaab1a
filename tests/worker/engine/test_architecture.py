"""Models that the engine would compute wrongly are refused, by name and with the reason."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tests.worker.engine.tiny import tiny_model
from worker.engine.architecture import inspect_model
from worker.engine.attention import ATTENTION
from worker.engine.cache import LayerShape
from worker.engine.convolution import replace_convolutions
from worker.engine.errors import EngineError

SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "attn_implementation": ATTENTION,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def refusals() -> list[Any]:
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    return [
        pytest.param(Gemma2ForCausalLM, Gemma2Config(**SMALL), "attention softcapping", id="gemma2"),
        pytest.param(
            GptOssForCausalLM,
            GptOssConfig(num_local_experts=2, num_experts_per_tok=1, **SMALL),
            "attention sinks",
            id="gpt-oss",
        ),
        pytest.param(
            Lfm2ForCausalLM,
            Lfm2Config(layer_types=["conv", "full_attention"], **SMALL),
            "1 of its 2 layers use transformers' attention interface or are short convolutions",
            id="convolutions of another kind",  # of LFM2's, if nobody has replaced them
        ),
        pytest.param(
            Qwen3NextForCausalLM,
            Qwen3NextConfig(
                layer_types=["linear_attention", "full_attention"],
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                linear_num_key_heads=2,
                linear_num_value_heads=2,
                num_experts=2,
                moe_intermediate_size=8,
                shared_expert_intermediate_size=8,
                **SMALL,
            ),
            "it has linear_attention beside attention, whose state cannot be rolled back .* convolutions",
            id="qwen3-next",
        ),
        pytest.param(
            MambaForCausalLM,
            MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4),
            "it has linear_attention beside attention",
            id="mamba",
        ),
        pytest.param(
            LlamaForCausalLM,
            LlamaConfig(rope_parameters=longrope, **SMALL),
            r"longrope position embedding changes .* beyond 32 tokens \(set context_limit to at most 32\)",
            id="longrope",
        ),
    ]


@pytest.mark.parametrize(("architecture", "config", "reason"), refusals())
def test_what_the_engine_cannot_compute_is_refused(
    architecture: type[PreTrainedModel], config: Any, reason: str
):
    model = architecture(config).eval()

    with torch.inference_mode(), pytest.raises(EngineError, match=reason) as refusal:
        inspect_model(model, "some/model", 64)

    assert f"some/model ({architecture.__name__}) cannot be served" in str(refusal.value)


def test_layers_are_found_as_they_are():
    model = tiny_model("gemma3")
    model.set_attn_implementation(ATTENTION)
    assert inspect_model(model, "tiny", 64) == [LayerShape(2, 8, 8)] * 2


def test_what_a_convolution_remembers_is_found():
    model = tiny_model("lfm2", layers=3)
    model.set_attn_implementation(ATTENTION)
    replace_convolutions(model)
    inputs = LayerShape.of_inputs(32)
    assert inspect_model(model, "tiny", 64) == [inputs, LayerShape(2, 8, 8), inputs]


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        (MistralForCausalLM, MistralConfig(sliding_window=8, **SMALL)),
        (
            GPT2LMHeadModel,
            GPT2Config(
                vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64, attn_implementation=ATTENTION
            ),
        ),
    ],
)
def test_other_architectures_are_served_as_they_come(architecture: type[PreTrainedModel], config: Any):
    with torch.inference_mode():
        assert len(inspect_model(architecture(config).eval(), "tiny", 64)) == 2
