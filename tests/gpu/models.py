"""A Llama of random weights, and a drafter of its first layers that guesses right now and then.

With weights of unit gain each layer adds to the residual stream what is of its own size; after the drafter's
layers that is scaled down, so that the rest of the model changes some of the next tokens and not all.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.worker.engine.tiny import BOS, END, EOS, PAD, tiny_tokenizer

DRAFT_LAYERS = 2
LATER_GAIN = 0.03  # of each layer that the drafter lacks; about 7 in 10 of its guesses are then right
QUERY_GAIN = 2.0  # attention looks at few tokens, and so the text does not repeat itself


@dataclass(frozen=True)
class Size:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    def config(self, layers: int) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=4096,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )


LARGE = Size(2048, 8192, 22, 16, 8, 32000)  # 1.5 billion weights
MIDDLE = Size(512, 2048, 8, 8, 4, 8000)  # for comparisons with a CPU
SMOKE = Size(64, 128, 4, 4, 2, 320)


def build(size: Size, folder: Path, device: str, dtype: torch.dtype) -> None:
    """Save the model as folder/target and its first layers as folder/draft."""
    torch.manual_seed(0)
    with torch.device(device):
        target = LlamaForCausalLM(size.config(size.layers)).to(dtype)
        draft = LlamaForCausalLM(size.config(DRAFT_LAYERS)).to(dtype)
    _initialise(target)
    kept = draft.state_dict().keys()
    draft.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in kept})
    for name, model in (("target", target), ("draft", draft)):
        model.generation_config = GenerationConfig(
            bos_token_id=BOS, eos_token_id=[EOS, END], pad_token_id=PAD
        )
        model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)


@torch.no_grad()
def _initialise(model: LlamaForCausalLM) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_()
        elif isinstance(module, nn.Linear):
            module.weight.normal_(std=module.in_features**-0.5)
            if name.endswith(("q_proj", "k_proj")):
                module.weight.mul_(QUERY_GAIN)
    for layer in model.model.layers[DRAFT_LAYERS:]:
        layer.self_attn.o_proj.weight.mul_(LATER_GAIN)
        layer.mlp.down_proj.weight.mul_(LATER_GAIN)
    model.lm_head.weight[[EOS, END]] = 0.0  # never the most probable: every sample is as long as asked for
