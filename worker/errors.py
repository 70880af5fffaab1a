"""Errors of the worker, and the one table that says which failures of a prompt are final."""

import re

# Final: the same prompt would fail the same way on every worker. The prompt ends as failed, with its code.
# Retryable: the device or the host was at fault. The prompt goes back to pending, at no cost.
RETRYABLE = {
    "prompt_too_long": False,
    "bad_max_tokens": False,
    "bad_token": False,
    "not_finite": False,
    "empty_prompt": False,
    "chat_template_error": False,
    "bad_chat_template_kwargs": False,
    "no_chat_template": False,
    "unsupported_option": False,
    "bad_grammar": False,
    "grammar_failed": False,
    "out_of_memory": True,
    "device_lost": True,
    "internal_error": True,
}

# A worker that fails a prompt retryably this often gives it up: retrying must end even where it never helps.
RETRY_LIMIT = 3


def is_retryable(code: str, engine_says: bool) -> bool:
    """The table's word, and the engine's for a code that the table does not know."""
    return RETRYABLE.get(code, engine_says)


# What CUDA says when its context is poisoned: every later call in this process fails, whatever it is.
# Memory that ran out is none of these.
LOST_DEVICE = re.compile(
    r"CUDA error: (?!out of memory)|device-side assert|illegal memory access|unspecified launch failure"
    r"|uncorrectable|misaligned address|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)"
    r"|CUDNN_STATUS_EXECUTION_FAILED"
)


def tells_of_lost_device(message: str) -> bool:
    """Whether the process has lost its device, and must end."""
    return LOST_DEVICE.search(message) is not None


class DeviceLost(Exception):
    """A poisoned CUDA context, found in what the engine says of one prompt."""


class ConfigurationError(Exception):
    """What a person must mend before a worker can serve; restarting would not help."""


# A process that cannot serve as configured ends with this (EX_CONFIG), and is not restarted.
EXIT_REFUSED = 78
