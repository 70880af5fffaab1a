"""What a row's options do to the target's logits before a token is chosen from them.

In this order: logit_bias is added; repetition_penalty divides positive logits and multiplies negative ones of
tokens in the prompt or the output; presence_penalty, once, and frequency_penalty, for each occurrence, are
subtracted for tokens in the output alone; the grammar forbids what does not match; min_tokens forbids what
would end the row. Each position counts the proposals before it as output: it sees what plain decoding would.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.grammar import GrammarState
from worker.engine.types import Request, Sampling


class Constraints:
    """One row's options that look at more than the logits, and what they have to remember."""

    def __init__(self, request: Request, eos_ids: Iterable[int], grammar: GrammarState | None) -> None:
        self.sampling = request.sampling
        self.grammar = grammar
        self.counts = TokenCounts(request) if has_penalties(request.sampling) else None
        self.endings = sorted({*eos_ids, *request.sampling.stop_token_ids})
        self.num_output = 0

    def push(self, token: int) -> bool:
        """Take in an emitted token; True once the grammar lets nothing follow."""
        self.num_output += 1
        if self.counts is not None:
            self.counts.push(token)
        return self.grammar is not None and self.grammar.push(token)

    def admissible(self, proposal: Sequence[int]) -> Sequence[int]:
        """Without what could never be accepted, and need not be verified."""
        return proposal if self.grammar is None else proposal[: self.grammar.admissible(proposal)]


def make_constraints(
    request: Request, eos_ids: Iterable[int], grammar: GrammarState | None
) -> Constraints | None:
    """None where the options ask for none of this: such a row pays nothing for the others."""
    sampling = request.sampling
    if grammar or sampling.logit_bias or sampling.min_tokens or has_penalties(sampling):
        return Constraints(request, eos_ids, grammar)
    return None


def has_penalties(sampling: Sampling) -> bool:
    return (
        sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    )


class TokenCounts:
    """How often each token that a penalty may concern is in the row's output."""

    def __init__(self, request: Request) -> None:
        sampling = request.sampling
        prompt = set(request.token_ids) if sampling.repetition_penalty != 1 else set[int]()
        self.tokens = list(prompt)  # in the order in which they came
        self.counts = [0] * len(prompt)
        self.num_prompt = len(prompt)  # the first so many tokens are in the prompt
        self._places = {token: place for place, token in enumerate(self.tokens)}

    def push(self, token: int) -> None:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0)
        self.counts[place] += 1

    def after(self, ahead: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
        """Tokens [U], and their counts [positions, U] after ahead[:first], ... ahead."""
        places = dict(zip(ahead, [-1] * len(ahead), strict=True))
        tokens = list(self.tokens)
        for token in places:
            place = self._places.get(token)
            if place is None:
                place = len(tokens)
                tokens.append(token)
            places[token] = place
        counts = torch.tensor(self.counts + [0] * (len(tokens) - len(self.counts)), dtype=torch.int32)
        counts = counts.repeat(len(ahead) - first + 1, 1)
        for index, token in enumerate(ahead):
            counts[max(0, index + 1 - first) :, places[token]] += 1
        return torch.tensor(tokens, dtype=torch.int64), counts


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one row among the logits: those after ahead[:first], ... ahead."""

    constraints: Constraints
    offset: int  # of the first of them
    ahead: Sequence[int]  # proposals that follow the row's tokens
    first: int = 0

    @property
    def length(self) -> int:
        return len(self.ahead) - self.first + 1


def constrain(logits: Tensor, spans: Sequence[Span]) -> Tensor:
    """Logits [N, V] with these positions changed: in place, but half precision becomes single."""
    if not spans:
        return logits
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    _add_biases(logits, [span for span in spans if span.constraints.sampling.logit_bias])
    _penalise(logits, [span for span in spans if span.constraints.counts is not None])
    ungrammatical = [span for span in spans if span.constraints.grammar is not None]
    _forbid(logits, ungrammatical)
    _postpone_end(logits, [span for span in spans if span.constraints.sampling.min_tokens])
    return logits


def _add_biases(logits: Tensor, spans: Sequence[Span]) -> None:
    positions: list[int] = []
    tokens: list[int] = []
    biases: list[float] = []
    for span in spans:
        known = [pair for pair in span.constraints.sampling.logit_bias if pair[0] < logits.shape[1]]
        for position in range(span.offset, span.offset + span.length):
            positions.extend([position] * len(known))
            tokens.extend(token for token, _ in known)
            biases.extend(bias for _, bias in known)
    if positions:
        values = torch.tensor(biases, dtype=logits.dtype, device=logits.device)
        logits.index_put_(_places(logits, positions, tokens), values, accumulate=True)


def _penalise(logits: Tensor, spans: Sequence[Span]) -> None:
    if not spans:
        return
    parts: list[tuple[Tensor, ...]] = []
    for span in spans:
        counts_of = span.constraints.counts
        assert counts_of is not None
        tokens, counts = counts_of.after(span.ahead, span.first)
        sampling = span.constraints.sampling
        seen = counts > 0
        seen[:, : counts_of.num_prompt] = True
        row, column = seen.nonzero(as_tuple=True)
        times = counts[row, column].double()
        minus = times * sampling.frequency_penalty + (times > 0) * sampling.presence_penalty
        factor = torch.full_like(minus, sampling.repetition_penalty)
        parts.append((row + span.offset, tokens[column], factor, minus))
    positions, tokens, factors, minus = (torch.cat(part) for part in zip(*parts, strict=True))
    known = tokens < logits.shape[1]  # a draft model may have fewer
    positions, tokens = positions[known].to(logits.device), tokens[known].to(logits.device)
    factors, minus = factors[known].to(logits), minus[known].to(logits)
    values = logits[positions, tokens]
    logits[positions, tokens] = torch.where(values < 0, values * factors, values / factors) - minus


def _forbid(logits: Tensor, spans: Sequence[Span]) -> None:
    """What the grammar does not allow."""
    if not spans:
        return
    masks: list[Tensor] = []
    positions: list[int] = []
    for span in spans:
        assert span.constraints.grammar is not None
        masks.append(span.constraints.grammar.masks(span.ahead, span.first))
        positions.extend(range(span.offset, span.offset + span.length))
    words = torch.cat(masks).to(logits.device)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()
    index = torch.tensor(positions, device=logits.device)
    logits[index] = logits[index].masked_fill_(~allowed, -torch.inf)


def _postpone_end(logits: Tensor, spans: Sequence[Span]) -> None:
    """Until min_tokens, what ends the row is forbidden, unless the grammar has left nothing else."""
    positions: list[int] = []
    tokens: list[int] = []
    for span in spans:
        constraints = span.constraints
        endings = [token for token in constraints.endings if token < logits.shape[1]]
        early = constraints.sampling.min_tokens - constraints.num_output - span.first
        for position in range(span.offset, span.offset + min(span.length, early)):
            if constraints.grammar is not None:
                others = logits[position].clone()
                others[endings] = -torch.inf
                if others.max() == -torch.inf:
                    continue
            positions.extend([position] * len(endings))
            tokens.extend(endings)
    if positions:
        logits[_places(logits, positions, tokens)] = -torch.inf


def _places(logits: Tensor, positions: Sequence[int], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor(positions, device=logits.device), torch.tensor(tokens, device=logits.device)
