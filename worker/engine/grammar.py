"""Regular expressions and JSON schemas that an output must match, by llguidance."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from worker.engine.types import Sampling

# Between two tokens of JSON: a small model could otherwise write whitespace until max_tokens.
JSON_WHITESPACE = r"[ \t\r\n]{1,16}"
_WORD = 32  # bits of a mask's element
_KEPT = 128  # compiled grammars


class GrammarError(Exception):
    """A grammar that cannot be compiled, or is too complex to be followed."""


class Grammars:
    """Compiles each grammar once; prompts of a batch mostly share one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._prepared: Any = None  # the tokenizer as llguidance has it: made when the first grammar comes
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def start(self, sampling: Sampling) -> "GrammarState | None":
        """A state at the grammar's beginning; None where the sample is free."""
        if sampling.regex is not None and sampling.json_schema is not None:
            raise GrammarError("regex and json_schema cannot both describe one output: give one of them")
        if sampling.regex is not None:
            key = ("regex", sampling.regex)
        elif sampling.json_schema is not None:
            key = ("json_schema", sampling.json_schema)
        else:
            return None
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return GrammarState(self._compiled[key].deep_copy(), self._vocab_size)

    def _compile(self, kind: str, text: str) -> Any:
        from llguidance import LLMatcher  # pairs that never see a grammar need not load it

        try:
            if kind == "regex":
                grammar = LLMatcher.grammar_from_regex(text)
            else:
                overrides: Any = {"whitespace_pattern": JSON_WHITESPACE}
                grammar = LLMatcher.grammar_from_json_schema(text, overrides=overrides)
        except ValueError as error:
            raise GrammarError(f"the {_NAMES[kind]} cannot be read: {error}") from error
        matcher = LLMatcher(self._llguidance_tokenizer(), grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the {_NAMES[kind]} cannot be compiled: {_first_lines(matcher.get_error())}")
        return matcher

    def _llguidance_tokenizer(self) -> Any:
        if self._prepared is None:
            from llguidance.hf import from_tokenizer

            if not isinstance(self._tokenizer, PreTrainedTokenizerFast):
                raise GrammarError("this model has no fast tokenizer, which regex and response_format need")
            if not self._eos_ids:
                raise GrammarError(
                    "this model has no end-of-text token, which regex and response_format need"
                )
            try:
                self._prepared = from_tokenizer(
                    self._tokenizer, n_vocab=self._vocab_size, eos_token=self._eos_ids
                )
            except Exception as error:  # whatever llguidance makes of a foreign tokenizer
                raise GrammarError(
                    f"this model's tokenizer cannot be used with regex and response_format: {error}"
                ) from error
        return self._prepared


class GrammarState:
    """Where one row's output is in its grammar. An error is kept until the row is next committed."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = (vocab_size + _WORD - 1) // _WORD

    def push(self, token: int) -> bool:
        """Take in an emitted token; True once nothing may follow it."""
        if self._matcher.is_error() or not self._matcher.consume_token(token):
            raise GrammarError(
                f"the output's grammar cannot be followed: {_first_lines(self._matcher.get_error())}"
            )
        return cast(bool, self._matcher.is_stopped())

    def admissible(self, proposal: Sequence[int]) -> int:
        """How many of the proposed tokens the grammar allows, from the first on."""
        return cast(int, self._matcher.deep_copy().validate_tokens(list(proposal)))

    def masks(self, ahead: Sequence[int], first: int) -> Tensor:
        """Bits of the tokens allowed after ahead[:first], ahead[:first + 1], ... ahead; all where that has
        left the grammar or ended, as nothing is emitted there. [len(ahead) - first + 1, words]"""
        bits = torch.full((len(ahead) - first + 1, self._words), -1, dtype=torch.int32)
        # On a copy: a limit that a wrong proposal runs into is no error of this row.
        matcher = self._matcher.deep_copy() if ahead else self._matcher
        consumed = 0
        for row, length in enumerate(range(first, len(ahead) + 1)):
            wanted = list(ahead[consumed:length])
            if wanted and matcher.try_consume_tokens(wanted) < len(wanted):
                break
            consumed = length
            if matcher.is_stopped():
                break
            matcher.unsafe_compute_mask_ptr(bits[row].data_ptr(), 4 * self._words)
            if matcher.is_error():  # a limit was hit: the row fails if it comes this far
                bits[row:] = -1
                break
        return bits


_NAMES = {"regex": "regex", "json_schema": "JSON schema"}


def _first_lines(message: str) -> str:
    """Without the parser's state, which follows on later lines."""
    lines = message.partition("<state>")[0].split("\n")
    return " ".join(line.strip() for line in lines if line.strip())[:500]
