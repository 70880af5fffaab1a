"""Prompts as the model sees them."""

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from tests.worker.engine.tiny import BOS, tiny_tokenizer
from worker.engine.errors import PromptError
from worker.engine.text import Message, render

USER: Message = {"role": "user", "content": "the thing"}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
ASSISTANT: Message = {"role": "assistant", "content": "ok"}


@pytest.fixture(scope="module")
def chat() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def base() -> PreTrainedTokenizerFast:
    """A base model's tokenizer: no template, BOS before every text."""
    tokenizer = tiny_tokenizer(chat_template=None)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    return tokenizer


def test_messages_are_written_by_the_template_with_the_assistants_turn_open(
    chat: PreTrainedTokenizerFast,
) -> None:
    rendered = render(chat, [SYSTEM, USER, ASSISTANT, USER])
    assert rendered.text == (
        "<bos>system: Be brief.<end>\nuser: the thing<end>\nassistant: ok<end>\n"
        "user: the thing<end>\nassistant: "
    )
    assert chat.decode(rendered.token_ids) == rendered.text


def test_the_templates_bos_is_not_doubled(base: PreTrainedTokenizerFast) -> None:
    base_with_template = tiny_tokenizer()
    base_with_template.backend_tokenizer.post_processor = base.backend_tokenizer.post_processor
    assert render(base_with_template, [USER]).token_ids.count(BOS) == 1
    assert render(base, "<bos>by hand").token_ids.count(BOS) == 1


def test_template_variables_are_passed_on(chat: PreTrainedTokenizerFast) -> None:
    assert render(chat, [USER], {"enable_thinking": True}).text.endswith("assistant: (thinking) ")


def test_raw_text_gets_only_what_the_tokenizer_adds(
    chat: PreTrainedTokenizerFast, base: PreTrainedTokenizerFast
) -> None:
    assert render(chat, "user: the").text == "user: the"
    assert chat.decode(render(chat, "user: the").token_ids) == "user: the"
    rendered = render(base, "the")
    assert rendered.text == "<bos>the"
    assert rendered.token_ids == (BOS, *chat.encode("the"))


def test_without_a_template_one_user_message_is_raw_text(base: PreTrainedTokenizerFast) -> None:
    assert render(base, [USER]).text == "<bos>the thing"
    assert render(base, [SYSTEM, USER]).text == "<bos>Be brief.\n\nthe thing"


def test_without_a_template_several_turns_are_refused(base: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        PromptError, match="no chat template to write the turns user, assistant, user"
    ) as error:
        render(base, [USER, ASSISTANT, USER])
    assert error.value.code == "no_chat_template"


def test_what_the_template_raises_is_the_reason(chat: PreTrainedTokenizerFast) -> None:
    with pytest.raises(PromptError, match="refuses these messages: unknown role critic") as error:
        render(chat, [{"role": "critic", "content": "no"}])
    assert error.value.code == "chat_template_error"


@pytest.mark.parametrize("name", ["tokenize", "add_generation_prompt", "return_tensors", "chat_template"])
def test_kwargs_may_not_reach_past_the_template(chat: PreTrainedTokenizerFast, name: str) -> None:
    with pytest.raises(PromptError, match=f"may not set {name}") as error:
        render(chat, [USER], {name: True})
    assert error.value.code == "bad_chat_template_kwargs"


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    """It comes with the model, from whoever made that."""
    evil = tiny_tokenizer(chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(PromptError, match="unsafe") as caught:
        render(evil, [USER])
    assert caught.value.code == "chat_template_error"


def test_an_empty_prompt_is_refused(chat: PreTrainedTokenizerFast, base: PreTrainedTokenizerFast) -> None:
    for tokenizer, prompt in ((chat, ""), (base, ""), (base, [Message(role="user", content="")])):
        with pytest.raises(PromptError) as error:
            render(tokenizer, prompt)
        assert error.value.code == "empty_prompt"
