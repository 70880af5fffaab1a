"""Which requests can run at all."""

from worker.engine.rows import RowFailed
from worker.engine.types import Request


def check_request(request: Request, target: str, context_limit: int, vocab_size: int) -> None:
    """Raise RowFailed, naming what is wrong, for a request that no step could serve."""
    length = len(request.token_ids)
    if length == 0:
        raise RowFailed("empty_prompt", "the prompt is empty: there is nothing to continue", retryable=False)
    if length >= context_limit:
        raise RowFailed(
            "prompt_too_long",
            f"the prompt has {length} tokens, and {target} runs with a context of {context_limit}, one "
            f"of which must be left to generate: shorten the prompt to at most {context_limit - 1} tokens",
            retryable=False,
        )
    if request.sampling.max_tokens < 1:
        raise RowFailed(
            "bad_max_tokens",
            f"max_tokens is {request.sampling.max_tokens}: at least 1 was expected",
            retryable=False,
        )
    strange = next((token for token in request.token_ids if not 0 <= token < vocab_size), None)
    if strange is not None:
        raise RowFailed(
            "bad_token",
            f"token {strange} of the prompt is not one of the {vocab_size} tokens of {target}: "
            "make the prompt with this model's tokenizer",
            retryable=False,
        )
    for option, tokens in (
        ("logit_bias", [token for token, _ in request.sampling.logit_bias]),
        ("stop_token_ids", request.sampling.stop_token_ids),
    ):
        strange = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if strange is not None:
            raise RowFailed(
                "bad_token",
                f"{option} names token {strange}, and {target} has the tokens 0 to {vocab_size - 1}: "
                "look the id up in this model's tokenizer",
                retryable=False,
            )
