"""Text to token ids by the model's chat template."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from transformers import PreTrainedTokenizerBase

from worker.engine.errors import PromptError


class Message(TypedDict):
    """One turn, as OpenAI writes it. Further keys (name, tool_calls, ...) reach the template as they are."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the model sees it."""

    text: str
    token_ids: tuple[int, ...]


# Of the arguments of `apply_chat_template` a prompt may set these; other keywords are template variables.
_TEMPLATE_INPUTS = {"tools", "documents"}


def render(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Message],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Rendered:
    """Messages by the chat template with the assistant's turn opened; a string is raw text."""
    if isinstance(prompt, str):
        rendered = _tokenize_raw(tokenizer, prompt)
    elif tokenizer.chat_template:
        rendered = _apply_template(tokenizer, prompt, chat_template_kwargs or {})
    else:
        rendered = _tokenize_raw(tokenizer, _without_template(prompt))
    if not rendered.token_ids:
        raise PromptError("empty_prompt", "the prompt is empty: there is nothing to continue")
    return rendered


def _tokenize_raw(tokenizer: PreTrainedTokenizerBase, text: str) -> Rendered:
    """The text with what the tokenizer itself adds (BOS, where the model was trained with one)."""
    if not text:
        return Rendered("", ())
    bos = cast(str | None, tokenizer.bos_token)
    if bos and text.startswith(bos):  # written by hand; a second one would change the output
        return Rendered(text, _encode(tokenizer, text, add_special_tokens=False))
    token_ids = _encode(tokenizer, text, add_special_tokens=True)
    if bos and token_ids and token_ids[0] == tokenizer.bos_token_id:
        text = bos + text
    return Rendered(text, token_ids)


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], kwargs: Mapping[str, Any]
) -> Rendered:
    own = (
        set(inspect.signature(cast(Callable[..., Any], tokenizer.apply_chat_template)).parameters)
        - _TEMPLATE_INPUTS
    )
    if reserved := sorted(own & kwargs.keys()):
        raise PromptError(
            "bad_chat_template_kwargs",
            f"chat_template_kwargs may not set {', '.join(reserved)}: give only variables of the template",
        )
    try:
        text = tokenizer.apply_chat_template(
            cast(list[dict[str, str]], list(messages)), tokenize=False, add_generation_prompt=True, **kwargs
        )
    except Exception as error:  # whatever the template, which is the model's own code, makes of the messages
        raise PromptError(
            "chat_template_error", f"the model's chat template refuses these messages: {error}"
        ) from error
    text = cast(str, text)
    # The template writes the special tokens itself, BOS included.
    return Rendered(text, _encode(tokenizer, text, add_special_tokens=False))


def _without_template(messages: Sequence[Message]) -> str:
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise PromptError(
            "no_chat_template",
            f"the model has no chat template to write the turns {', '.join(roles) or '(none)'} with: "
            "give raw text or one user message (a system message may precede it), or use an instruct model",
        )
    return "\n\n".join(message["content"] for message in messages if message["content"])


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))
