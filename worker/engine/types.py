"""What goes into the engine and what comes out: plain dataclasses, no tensors."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Method = Literal["none", "prompt_lookup", "suffix", "draft_model", "dspark"]
DType = Literal["float64", "float32", "bfloat16", "float16"]
Quantization = Literal["int8", "bitsandbytes-8bit", "bitsandbytes-4bit"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the Hugging Face hub, at a fixed revision (branch, tag or commit)."""

    repo: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A model saved with `save_pretrained`, tokenizer beside it."""

    path: Path


@dataclass(frozen=True, slots=True)
class PackageModel:
    """A GGUF file inside an installed Python package; converted once into a cache folder."""

    package: str
    file: str


ModelSource = HubModel | FolderModel | PackageModel


@dataclass(frozen=True, slots=True)
class Pair:
    """A target model, a drafter, and how to run them."""

    target: ModelSource
    method: Method = "prompt_lookup"
    draft: ModelSource | None = None  # the small sibling of "draft_model", the network of "dspark"
    gamma: int = 5  # proposals per row and step, at most
    dtype: DType = "float32"
    quantization: Quantization | None = None  # of the weights; int8: on a CPU, the others: on CUDA
    context_limit: int | None = None  # tokens, prompt and output together; None: the model's own
    max_rows: int = 32  # rows decoded at once
    kv_cache: str = "50%"  # what the caches may take: of what the weights leave free, or a size, "4GiB"
    prefill_tokens: int = 256  # of prompts, computed in a pass beside running rows
    baseline_share: float = 0.02  # of steps that run plain, to measure what drafting brings; 0: none
    device: str = "cpu"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one sample is drawn. Temperature 0 is greedy, and then seed has no effect."""

    temperature: float = 0.0
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0: off
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    seed: int = 0
    min_p: float = 0.0  # of the most probable token's probability, after temperature; 0: off
    repetition_penalty: float = 1.0  # on tokens of prompt and output, as transformers defines it; 1: off
    presence_penalty: float = 0.0  # on tokens of the output, as OpenAI defines it
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    min_tokens: int = 0  # before so many, neither EOS nor a stop id, and no stop string is looked for
    stop_token_ids: tuple[int, ...] = ()  # end the sample as EOS does
    logprobs: int | None = None  # alternatives to each token, 0 to 20; None: no logprobs
    regex: str | None = None  # what the whole output must match
    json_schema: str | None = None  # what the output must be JSON of; not together with regex


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate. With equal token_ids, sampling and sample_index the text is always the same."""

    id: Hashable
    token_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    sample_index: int = 0
    group: Hashable = None  # requests of a group are measured together: those of a batch


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the logarithm of its probability under the model."""

    token_id: int
    spelling: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class EmittedLogprob(TokenLogprob):
    """An emitted one, with the most probable tokens in its place, descending; it need not be among them.

    Of the model's own distribution: before temperature, filters, penalties, bias and grammar.
    """

    alternatives: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class Generation:
    """A finished sample. Durations in seconds; acceptance as the field counts it (bonus not accepted)."""

    request_id: Hashable
    sample_index: int
    text: str  # special tokens and the stop string removed
    token_ids: tuple[int, ...]  # as generated, the EOS included where it ended the row
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    waited_seconds: float  # in the engine's queue, before its prefill
    prefill_seconds: float
    first_token_seconds: float  # prefill began until the first token
    decode_seconds: float  # first token until the last
    method: Method
    spec_disabled_reason: str | None
    num_steps: int  # verify steps of the target that this row was in
    num_spec_steps: int  # those with at least one proposal for it
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: tuple[int, ...]  # [k] = spec steps with k accepted
    rows_in_flight: float  # mean over its steps
    logprobs: tuple[EmittedLogprob, ...] | None = None  # one for each of token_ids, where asked for

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class Failure:
    """A request that ended without a sample."""

    request_id: Hashable
    sample_index: int
    code: str  # e.g. "prompt_too_long", "out_of_memory"
    message: str
    retryable: bool
