"""Log-probabilities of emitted tokens under the model itself, whatever the row's options did to them."""

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from worker.engine.detokenizer import TokenDecoder
from worker.engine.types import EmittedLogprob, TokenLogprob

MAX_ALTERNATIVES = 20

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece spells a byte that no piece has


class Measured(NamedTuple):
    """An emitted token as numbers alone: most rows' logprobs are spelt once, at the end."""

    token: int
    logprob: float
    alternatives: list[tuple[int, float]]


def measure(logits: Tensor, tokens: Sequence[int], num_alternatives: Sequence[int]) -> list[Measured]:
    """Of the tokens chosen from the model's logits [N, V]."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    total = logits.logsumexp(-1, keepdim=True)
    chosen = torch.tensor(tokens, device=logits.device).clamp(min=0)  # a row without a token fails later
    own: list[float] = (logits.gather(-1, chosen[:, None]) - total)[:, 0].tolist()
    top = logits.topk(min(max(num_alternatives), logits.shape[-1]), dim=-1)
    values: list[list[float]] = (top.values - total).tolist()
    ids: list[list[int]] = top.indices.tolist()
    return [
        Measured(token, own[i], list(zip(ids[i][:wanted], values[i][:wanted], strict=True)))
        for i, (token, wanted) in enumerate(zip(tokens, num_alternatives, strict=True))
    ]


def spelt(measured: Sequence[Measured], decoder: TokenDecoder) -> tuple[EmittedLogprob, ...]:
    return tuple(
        EmittedLogprob(
            token,
            _spelling(decoder, token),
            logprob,
            tuple(TokenLogprob(other, _spelling(decoder, other), value) for other, value in alternatives),
        )
        for token, logprob, alternatives in measured
    )


def _spelling(decoder: TokenDecoder, token: int) -> bytes:
    """The bytes that a token stands for; a special one by its name."""
    if decoder.is_byte_level:
        return decoder.token_bytes(token)
    piece = cast(str | None, decoder.tokenizer.convert_ids_to_tokens(token)) or ""
    if byte := _BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace("▁", " ").encode()
