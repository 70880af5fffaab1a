"""Text token by token: what has come so far is always a beginning of the tokenizer's own decoding."""

from collections.abc import Callable, Sequence
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from tests.worker.engine.tiny import BOS, END, tiny_tokenizer
from worker.engine.detokenizer import Detokenizer, TokenDecoder

TOKENIZER = tiny_tokenizer()
DECODER = TokenDecoder(TOKENIZER)


def pieces(decoder: TokenDecoder, token_ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decoder)
    return [detokenizer.push(token_id) for token_id in token_ids]


def decode(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def sentencepiece_tokenizer(strips_first_space: bool = True) -> PreTrainedTokenizerFast:
    """Of Llama 2's and Gemma's make: spaces are ▁, bytes not in the vocabulary are tokens like <0xE2>."""
    words = ["▁", "▁the", "▁a", "the", "b", "é", "\n", "▁▁"]
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips_first_space else steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="<unk>")


def test_a_character_of_several_tokens_comes_whole() -> None:
    token_ids = TOKENIZER.encode("a€!")
    assert pieces(DECODER, token_ids) == ["a", "", "", "€", "!"]


def test_half_a_character_at_the_end_is_left_out() -> None:
    token_ids = TOKENIZER.encode("a€")[:-1]
    assert "".join(pieces(DECODER, token_ids)) == "a"


def test_a_token_may_end_one_character_and_hold_half_of_the_next() -> None:
    merged = TOKENIZER.convert_tokens_to_ids("aÃ")  # "a" and the first byte of "é"
    rest = TOKENIZER.convert_tokens_to_ids("©")
    assert pieces(DECODER, [merged, rest]) == ["a", "é"]


def test_special_tokens_and_padding_ids_have_no_text() -> None:
    beyond_the_tokenizer = 300
    letter = TOKENIZER.encode("x")[0]
    assert pieces(DECODER, [BOS, letter, END, beyond_the_tokenizer, letter]) == ["", "x", "", "", "x"]


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_any_tokens_decode_as_the_tokenizer_does(token_ids: list[int]) -> None:
    """Invalid bytes included; only a character unfinished at the end may be missing (then one U+FFFD)."""
    whole = decode(TOKENIZER, token_ids)
    assert "".join(pieces(DECODER, token_ids)) in (whole, whole.removesuffix("�"))


@pytest.mark.parametrize("strips_first_space", [True, False], ids=["llama-2", "gemma"])
@given(text=st.text(alphabet="the ab€é😀\n", max_size=30))
def test_a_sentencepiece_vocabulary_decodes_alike(text: str, strips_first_space: bool) -> None:
    tokenizer = sentencepiece_tokenizer(strips_first_space=strips_first_space)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = TokenDecoder(tokenizer)
    assert not decoder.is_byte_level
    assert "".join(pieces(decoder, token_ids)) == decode(tokenizer, token_ids)


@pytest.mark.parametrize("make", [tiny_tokenizer, sentencepiece_tokenizer])
def test_the_work_is_linear_even_for_bytes_that_never_form_a_character(
    make: Callable[[], PreTrainedTokenizerFast],
) -> None:
    tokenizer = make()
    decoder = TokenDecoder(tokenizer)
    continuation_byte = tokenizer.convert_tokens_to_ids("<0x80>" if not decoder.is_byte_level else "Ģ")
    started = perf_counter()
    assert "�" in "".join(pieces(decoder, [continuation_byte] * 8000))
    assert perf_counter() - started < 5
