"""Whether a drafter can serve a target: the same token behind every id, whatever sizes they are padded to."""

from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from worker.engine.errors import VocabularyMismatch
from worker.engine.loading import LoadedModel


def check_draft(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise VocabularyMismatch unless the draft model can read and propose the target's tokens."""
    check_vocabularies(target.tokenizer, draft.tokenizer, (target.name, draft.name))
    rows = cast(int, cast(Any, draft.model).get_input_embeddings().num_embeddings)
    highest = max(target.tokenizer.get_vocab().values())
    if highest >= rows:
        raise VocabularyMismatch(
            f"the tokenizer of {target.name} uses ids up to {highest}, "
            f"but the draft model {draft.name} has embeddings for {rows} only: {_ADVICE}"
        )


def check_vocabularies(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, names: tuple[str, str]
) -> None:
    """Raise VocabularyMismatch, both named and the first difference shown, if an id means different tokens.

    Added tokens that only one of them has (chat marks of a later family member) are no difference: the draft
    model never proposes one it lacks, and the target never accepts one that it lacks.
    """
    first, second = _token_of_id(target), _token_of_id(draft)
    added = target.added_tokens_decoder.keys() | draft.added_tokens_decoder.keys()
    extra = added & (first.keys() ^ second.keys())
    different = [
        token_id
        for token_id in sorted((first.keys() | second.keys()) - extra)
        if first.get(token_id) != second.get(token_id)
    ]
    if different:
        token_id = different[0]
        raise VocabularyMismatch(
            f"the tokenizers of {names[0]} ({len(first)} tokens) and {names[1]} ({len(second)} tokens) "
            f"differ in {len(different)} ids: {token_id} is {_shown(first, token_id)} for the first and "
            f"{_shown(second, token_id)} for the second: {_ADVICE}"
        )


_ADVICE = "choose a draft model of the target's own family, or the method prompt_lookup, which needs none"


def _token_of_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


def _shown(tokens: dict[int, str], token_id: int) -> str:
    return repr(tokens[token_id]) if token_id in tokens else "no token"
