"""Sampling options as people write them: on the command line, in a JSONL row, in an OpenAI body."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from worker.wire.formats import check_format, read_format

MAX_SEED = 2**63 - 1  # what a BIGINT column holds
MAX_LOGPROBS = 20
MAX_TOKEN = 2**31 - 1

# Of options that change what is generated, the values that do not.
NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "min_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "response_format": {"type": "text"},
}


def _read_json(value: Any) -> Any:
    """A cell of a CSV file holds structure as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise ValueError("should be JSON") from None


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class OptionError(ValueError):
    """An option that cannot be honoured as it was given."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class SamplingOptions(BaseModel):
    """Every option may be absent: it then comes from the batch, the pair, or the model's own defaults."""

    # Strict, so that "0.7" or true in a row is an error with a place and not a silent number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    # By token id, as JSON's keys are: strings of digits. OpenAI's limit on the number is kept.
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias],
            BeforeValidator(_read_json),
            Field(max_length=1024),
        ]
        | None
    ) = None
    max_tokens: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1)] | None,
        Field(validation_alias=AliasChoices("max_tokens", "max_completion_tokens")),
    ] = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], BeforeValidator(_read_json), Field(max_length=1024)] | None = (
        None
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # alternatives to each token
    response_format: dict[str, Any] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("response_format", mode="before")
    @classmethod
    def _format_is_known(cls, value: Any) -> Any:
        if value is None:
            return None
        response_format = read_format(value)
        check_format(response_format)
        return response_format

    def given(self) -> dict[str, Any]:
        """Only what was set, ready for a JSON column."""
        return self.model_dump(exclude_none=True)


def read_options(values: Mapping[str, Any], *, from_text: bool = False) -> dict[str, Any]:
    """What a row or a command sets, checked. `from_text`: values are strings (CSV), to be read as numbers."""
    validate = SamplingOptions.model_validate_strings if from_text else SamplingOptions.model_validate
    try:
        return validate(_one_spelling(values)).given()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        ours = first.get("ctx", {}).get("error")
        if isinstance(ours, ValueError):
            raise OptionError(name, str(ours)) from None
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise OptionError(name, f"{message}, got {values.get(name)!r}") from None


def _one_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's pair of logprobs and top_logprobs as one number; regex as a response_format."""
    options = dict(values)
    alternatives = options.pop("top_logprobs", None)
    wanted = options.get("logprobs")
    if wanted is True or wanted == "true":
        options["logprobs"] = alternatives or ("0" if wanted == "true" else 0)
    elif wanted is None or wanted is False or wanted == "false":
        options.pop("logprobs", None)
        if alternatives not in (None, 0, "0"):
            raise OptionError("top_logprobs", "needs logprobs to be true")
    elif alternatives is not None:
        raise OptionError("top_logprobs", "needs logprobs to be true, not a number")
    if (pattern := options.pop("regex", None)) is not None:
        if options.get("response_format") is not None:
            raise OptionError("regex", "response_format describes the output, too; give one of them")
        options["response_format"] = {"type": "regex", "regex": pattern}
    return options
