"""Token ids to text, token by token: never half a character, and linear in the output's length."""

import codecs
from typing import Any, cast

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

# An unfinished character is held back, but not longer than this: a run of invalid bytes never completes.
_HELD_TOKENS = 16


class TokenDecoder:
    """What all detokenizers of one tokenizer share."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
        )
        self.is_byte_level = _is_byte_level(tokenizer)
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes behind a token of a byte-level vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def decode(self, token_ids: list[int]) -> str:
        return cast(
            str,
            self.tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        )

    def _spell(self, token_id: int) -> bytes:
        token = cast(str | None, self.tokenizer.convert_ids_to_tokens(token_id))
        if token is None:  # an id beyond the tokenizer, from a padded vocabulary
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:  # an added token, kept as plain text
            return token.encode()


class Detokenizer:
    """The text of one row. `push` gives what a token adds; a character unfinished at the end is left out."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self.decoder = decoder
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # For pieces spelt by their neighbours (SentencePiece's spaces): those given out last and those held.
        self._window: list[int] = []
        self._shown = 0

    def push(self, token_id: int) -> str:
        if token_id in self.decoder.special_ids:
            return ""
        if self.decoder.is_byte_level:
            return self._utf8.decode(self.decoder.token_bytes(token_id))
        return self._push_piece(token_id)

    def _push_piece(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self.decoder.decode(self._window)
        is_full = len(self._window) - self._shown >= _HELD_TOKENS
        if text.endswith("�") and not is_full:
            return ""
        added = text[len(self.decoder.decode(self._window[: self._shown])) :]
        if added or is_full:
            del self._window[: self._shown]
            self._shown = len(self._window)
        return added


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether tokens are spelt in GPT-2's alphabet of bytes and nothing else happens on decoding."""
    backend = cast(Any, getattr(tokenizer, "backend_tokenizer", None))
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling: printable Latin-1 bytes stand for themselves, the others for 256, 257, ..."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
