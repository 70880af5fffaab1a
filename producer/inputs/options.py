"""Sampling options of a row, checked by the model that the worker reads them with."""

from typing import Any

from producer.inputs.item import RowError
from worker.wire.sampling import OptionError, SamplingOptions, read_options

SAMPLING_FIELDS = frozenset({*SamplingOptions.model_fields, "max_completion_tokens", "top_logprobs", "regex"})


def sampling_of(row: dict[str, Any], *, from_text: bool = False) -> dict[str, Any]:
    """The options that a row sets. `from_text`: values are strings (CSV), to be read as numbers."""
    given = {name: row[name] for name in SAMPLING_FIELDS & row.keys()}
    if not given:
        return given
    if len({"max_tokens", "max_completion_tokens"} & given.keys()) == 2:
        raise RowError("max_tokens and max_completion_tokens are one option; give one of them")
    try:
        return read_options(given, from_text=from_text)
    except OptionError as error:
        raise RowError(f"option {error}") from None


def refuse_unknown(name: str, value: Any) -> None:
    """Pass over an option that is null; refuse any other by name."""
    if value is not None:
        raise RowError(f'unknown option "{name}"; known: {", ".join(sorted(SAMPLING_FIELDS))}')
