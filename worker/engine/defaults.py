"""What a model's own generation_config says about sampling."""

import logging
from typing import Any

from transformers import GenerationConfig

log = logging.getLogger("specmill.engine")

# How options are called there and here. The first hold only where the model samples.
_SAMPLED = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
_ALWAYS = {"repetition_penalty": "repetition_penalty", "min_new_tokens": "min_tokens"}

# What would change the output and is not served: the value that asks for nothing.
_UNSERVED = {
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "num_beams": 1,
    "watermarking_config": None,
}
_UNSERVED_SAMPLED = {"top_h": None, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


def generation_defaults(config: GenerationConfig) -> dict[str, Any]:
    """Sampling where nobody says otherwise; greedy where the model does not sample.

    What it asks for beyond the options served here is not dropped in silence.
    """
    if unserved := unserved_defaults(config):
        settings = ", ".join(f"{name}={value!r}" for name, value in unserved.items())
        log.warning(
            "the model's generation_config sets %s: this engine does not, and goes on without", settings
        )
    names = _ALWAYS | (_SAMPLED if config.do_sample else {})
    given = {
        ours: value for name, ours in names.items() if (value := getattr(config, name, None)) is not None
    }
    return {"temperature": 1.0 if config.do_sample else 0.0} | given


def unserved_defaults(config: GenerationConfig) -> dict[str, Any]:
    """What it sets that this engine does not do."""
    neutral = _UNSERVED | (_UNSERVED_SAMPLED if config.do_sample else {})
    return {
        name: value
        for name, nothing in neutral.items()
        if (value := getattr(config, name, None)) is not None and value != nothing
    }
