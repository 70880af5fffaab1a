"""Checks a pair before it serves: its models load, its tokenizers agree, it fits in memory."""

from dataclasses import dataclass
from typing import cast

from worker.engine.architecture import inspect_model
from worker.engine.attention import ATTENTION
from worker.engine.compatibility import check_draft
from worker.engine.dspark.loading import load_drafter
from worker.engine.loading import LoadedModel, draft_source, load_model, name_of
from worker.engine.memory import MemoryEstimate, available_memory, check_fits
from worker.engine.types import ModelSource, Pair


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """A model as it was found."""

    name: str
    revision: str | None
    architecture: str
    parameters: int
    tokens: int  # of its tokenizer
    has_chat_template: bool
    eos_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What is known of a pair that can serve."""

    target: ModelFinding
    draft: ModelFinding | None
    context_limit: int
    memory: MemoryEstimate
    available_memory: int


def check_pair(pair: Pair) -> PairCheck:
    """Load the pair's models and judge them; raises the EngineError that a worker would end with."""
    free = available_memory(pair.device)
    memory = check_fits(pair, free)
    target = _load(pair.target, pair, pair.context_limit)
    draft: ModelFinding | None = None
    if draft_model := draft_source(pair):
        loaded = _load(draft_model, pair, None)
        check_draft(target, loaded)
        draft = _finding(loaded)
    elif pair.method == "dspark":
        draft = _drafter_finding(pair, target)
    return PairCheck(_finding(target), draft, target.context_limit, memory, free)


def _load(source: ModelSource, pair: Pair, context_limit: int | None) -> LoadedModel:
    loaded = load_model(
        source,
        pair.dtype,
        pair.device,
        trust_remote_code=pair.trust_remote_code,
        attention=ATTENTION,
        context_limit=context_limit,
        quantization=pair.quantization,
    )
    inspect_model(loaded.model, loaded.name, loaded.context_limit)
    return loaded


def _drafter_finding(pair: Pair, target: LoadedModel) -> ModelFinding:
    """It proposes the target's tokens, and has no tokenizer of its own."""
    network = load_drafter(pair, target)
    return ModelFinding(
        name=name_of(pair.draft) if pair.draft else "",
        revision=None,
        architecture=type(network).__name__,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        tokens=network.config.draft_vocab_size,
        has_chat_template=False,
        eos_tokens=(),
    )


def _finding(loaded: LoadedModel) -> ModelFinding:
    tokenizer = loaded.tokenizer
    return ModelFinding(
        name=loaded.name,
        revision=loaded.revision,
        architecture=type(loaded.model).__name__,
        parameters=loaded.model.num_parameters(),
        tokens=len(tokenizer),
        has_chat_template=bool(cast(object, tokenizer.chat_template)),
        eos_tokens=tuple(str(tokenizer.convert_ids_to_tokens(i)) for i in sorted(loaded.eos_ids)),
    )
