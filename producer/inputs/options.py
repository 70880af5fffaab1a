"""Sampling options of a row, checked by the model that the worker reads them with."""

from typing import Any

from pydantic import ValidationError

from producer.inputs.item import RowError
from worker.wire.sampling import SamplingOptions

SAMPLING_FIELDS = frozenset({*SamplingOptions.model_fields, "max_completion_tokens"})

# Known elsewhere, not yet here: refused by name, with a value that asks for nothing let through.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
}


def sampling_of(row: dict[str, Any], *, from_text: bool = False) -> dict[str, Any]:
    """The options that a row sets. `from_text`: values are strings (CSV), to be read as numbers."""
    given = {name: row[name] for name in SAMPLING_FIELDS & row.keys()}
    if not given:
        return given
    if len({"max_tokens", "max_completion_tokens"} & given.keys()) == 2:
        raise RowError("max_tokens and max_completion_tokens are one option; give one of them")
    validate = SamplingOptions.model_validate_strings if from_text else SamplingOptions.model_validate
    try:
        return validate(given).given()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise RowError(f"option {name}: {_lower(first['msg'])}, got {given[name]!r}") from None


def refuse_unsupported(name: str, value: Any) -> None:
    """Pass over an option that asks for nothing; refuse any other by name."""
    if value is None or any(_same(value, neutral) for neutral in NEUTRAL.get(name, ())):
        return
    if name in NEUTRAL:
        raise RowError(f"option {name} is not supported yet; remove it or submit this row later")
    raise RowError(f'unknown option "{name}"; known: {", ".join(sorted(SAMPLING_FIELDS))}')


def _same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
