"""Tiny models saved to disk: real architectures, random weights, a byte-level tokenizer of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Kind = Literal["llama", "qwen3", "gemma3", "lfm2", "lfm2_moe"]

SPECIAL_TOKENS = ("<bos>", "<eos>", "<end>", "<pad>")
BOS, EOS, END, PAD = range(4)  # END is what closes a chat turn: a second EOS
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    "{% if enable_thinking %}{{ '(thinking) ' }}{% endif %}"
)
# Merges that make tokens of several letters, and one that holds half of a character (é is two bytes).
WORDS = ("th", "the", "in", "ing", "Ġa", "Ġthe", "er", "on", "or", "user", "ass", "Ġâ", "aÃ", "..")


def tiny_tokenizer(
    chat_template: str | None = CHAT_TEMPLATE, words: Sequence[str] = WORDS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 279 tokens: any text goes in and any bytes may come out."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_model(
    kind: Kind = "llama",
    vocab_size: int = 320,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    **config: Any,
) -> PreTrainedModel:
    """Random weights, large enough for the next token to depend on the whole context."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "dtype": dtype,
    } | config
    torch.manual_seed(seed)
    match kind:
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(initializer_range=0.3, **common))
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(initializer_range=0.3, **common))
        case "gemma3":
            sliding = {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}
            sliding["tie_word_embeddings"] = False  # tied and random, it would repeat its last token for ever
            model = Gemma3ForCausalLM(Gemma3TextConfig(initializer_range=0.3, **(sliding | common)))
        case "lfm2":
            model = Lfm2ForCausalLM(Lfm2Config(**_hybrid(common)))
        case "lfm2_moe":
            experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
            model = Lfm2MoeForCausalLM(Lfm2MoeConfig(num_dense_layers=1, **(experts | _hybrid(common))))
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=[EOS, END], pad_token_id=PAD)
    return model.to(dtype).eval()


def _hybrid(common: dict[str, Any]) -> dict[str, Any]:
    """Attention in the second layer, short convolutions before and after it."""
    kinds = ["full_attention" if layer == 1 else "conv" for layer in range(common["num_hidden_layers"])]
    untied = {"tie_word_embeddings": False}  # tied and random, it would repeat its last token for ever
    return {"layer_types": kinds, "initializer_range": 0.3} | untied | common


def save_tiny_model(
    folder: Path,
    kind: Kind = "llama",
    vocab_size: int = 320,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    chat_template: str | None = CHAT_TEMPLATE,
    words: Sequence[str] = WORDS,
    **config: Any,
) -> Path:
    """A folder as `save_pretrained` writes it: model, tokenizer and generation config."""
    tiny_model(kind, vocab_size, seed, dtype=dtype, layers=layers, **config).save_pretrained(folder)
    tiny_tokenizer(chat_template, words).save_pretrained(folder)
    return folder
