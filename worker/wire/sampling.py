"""Sampling options as people write them: on the command line, in a JSONL row, in an OpenAI body."""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

MAX_SEED = 2**63 - 1  # what a BIGINT column holds


class SamplingOptions(BaseModel):
    """Every option may be absent: it then comes from the batch, the pair, or the model's own defaults."""

    # Strict, so that "0.7" or true in a row is an error with a place and not a silent number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    max_tokens: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1)] | None,
        Field(validation_alias=AliasChoices("max_tokens", "max_completion_tokens")),
    ] = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def given(self) -> dict[str, Any]:
        """Only what was set, ready for a JSON column."""
        return self.model_dump(exclude_none=True)
