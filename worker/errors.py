"""Errors of the worker, and the one table that says which failures of a prompt are final."""

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
    "out_of_memory": True,
    "device_lost": True,
    "internal_error": True,
}

# A worker that fails a prompt retryably this often gives it up: retrying must end even where it never helps.
RETRY_LIMIT = 3


def is_retryable(code: str, engine_says: bool) -> bool:
    """The table's word, and the engine's for a code that the table does not know."""
    return RETRYABLE.get(code, engine_says)


class ConfigurationError(Exception):
    """What a person must mend before a worker can serve; restarting would not help."""


# A process that cannot serve as configured ends with this (EX_CONFIG), and is not restarted.
EXIT_REFUSED = 78
