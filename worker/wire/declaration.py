"""How a pair is declared: a `[pairs.NAME]` table of specmill.toml."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

# A pair's name becomes a queue's name and a metric's label.
PairName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSource(_Table):
    """A model on the Hugging Face hub."""

    hub: str
    revision: str = "main"


class FolderSource(_Table):
    """A model saved with `save_pretrained`, its tokenizer beside it; or a DSpark drafter, which has none."""

    folder: str


class PackageSource(_Table):
    """A GGUF file inside an installed Python package, or a folder there with a DSpark drafter."""

    package: str
    file: str


Source = HubSource | FolderSource | PackageSource


class PairSettings(_Table):
    """A target model, a drafter, and how to run them."""

    target: Source
    draft: Source | None = None  # the small sibling of "draft_model", the network of "dspark"
    method: Literal["none", "prompt_lookup", "suffix", "draft_model", "dspark"] = "prompt_lookup"
    gamma: Annotated[int, Field(ge=1, le=64)] = 5  # proposals per row and step, at most
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    # Of the weights: int8 on a CPU, the others on CUDA. What a checkpoint brings itself is not declared.
    quantization: Literal["int8", "bitsandbytes-8bit", "bitsandbytes-4bit"] | None = None
    context_limit: Annotated[int, Field(ge=2)] | None = None  # prompt and output together; the model's own
    max_rows: Annotated[int, Field(ge=1)] = 32  # rows decoded at once
    # What the KV caches may take: a share of what the weights leave free, or a size.
    kv_cache: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)? ?(%|MiB|GiB)$")] = "50%"
    prefill_tokens: Annotated[int, Field(ge=1)] = 256  # of prompts, computed in a pass beside running rows
    max_tokens: Annotated[int, Field(ge=1)] = 512  # for prompts that name none
    baseline_share: Annotated[float, Field(ge=0, le=0.5)] = 0.02  # of steps that run plain; 0: none
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _draft_matches_method(self) -> Self:
        if self.method in ("draft_model", "dspark") and self.draft is None:
            raise ValueError(
                f'method "{self.method}" needs '
                "draft = { hub = ... }, { folder = ... } or { package = ... }"
            )
        if self.method not in ("draft_model", "dspark") and self.draft is not None:
            raise ValueError(
                f'a draft model is declared, but method "{self.method}" uses none: drop one of them'
            )
        return self
