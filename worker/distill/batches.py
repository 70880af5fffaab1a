"""Anchors in an order of their own for each epoch, and what a training step needs of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from worker.distill.text import Text

ANCHORS_PER_TEXT = 32  # in a step: they share the text's keys and values
ANCHORS_PER_STEP = 256
ROUND = 64  # lengths are filled up to a multiple: a CPU's library compiles products anew for each shape

# Of a text: its first anchor, and how likely decoding comes to this one and to each that follows.
Chances = tuple[int, Tensor]


@dataclass(frozen=True, slots=True)
class Visit:
    """Some anchors of a text."""

    text: int
    anchors: tuple[int, ...]  # positions of response tokens; at least one more token follows


@dataclass(frozen=True, slots=True)
class Batch:
    """B texts' contexts side by side, A anchors of each, G slots an anchor.

    A slot's token is what the drafter is to propose there, and its distribution is the target's.
    """

    # [C, m * d]: positions before the last anchor of each text, one text after another, and a filling
    features: Tensor
    positions: Tensor  # [C]
    places: Tensor  # [B, T]: of each text's position among the C
    seen: Tensor  # [B, A]: how many positions each anchor sees; 0: no anchor
    inputs: Tensor  # [B, A]: the anchor tokens
    previous: Tensor  # [B, A, G]: the token before each slot's
    tokens: Tensor  # [B, A, G]; -1: none
    top_ids: Tensor  # [B, A, G, TOP]; the target's vocabulary
    top_probs: Tensor  # [B, A, G, TOP]

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(getattr(self, part.name).to(device) for part in fields(self)))

    @property
    def num_anchors(self) -> int:
        return int((self.seen > 0).sum())


def chances(text: Text) -> Chances:
    """A token that the target was unsure of comes where a proposal was refused: it is mostly an anchor.

    Of tokens to which SmolLM2-135M gave 5% its drafter's decoding begins at 0.82, of those with 95% at 0.24.
    """
    written = text.tokens[text.prompt_tokens :, None] == text.top_ids
    sure = (text.top_probs.float() * written).sum(1)[:-1]
    chance = 0.85 - 0.65 * sure
    chance[:1] = 1
    return text.prompt_tokens, chance


def plan_epoch(texts: Sequence[Chances], seed: int) -> list[list[Visit]]:
    """Anchors of every text, about as many as decoding comes to; none twice."""
    generator = torch.Generator().manual_seed(seed)
    visits: list[Visit] = []
    for text, (first, chance) in enumerate(texts):
        expected = float(chance.sum())
        # Where one visit does not do, all are whole: others would be filled up.
        size = ANCHORS_PER_TEXT if expected > ANCHORS_PER_TEXT else 1
        count = int(expected / size + torch.rand((), generator=generator))
        if not (number := min(count * size, len(chance))):
            continue
        anchors: list[int] = (first + torch.multinomial(chance, number, generator=generator)).tolist()
        for start in range(0, number, ANCHORS_PER_TEXT):
            visits.append(Visit(text, tuple(sorted(anchors[start : start + ANCHORS_PER_TEXT]))))
    order: list[int] = torch.randperm(len(visits), generator=generator).tolist()
    return list(_grouped([visits[place] for place in order]))


def _grouped(visits: Sequence[Visit]) -> Iterator[list[Visit]]:
    group: list[Visit] = []
    for visit in visits:
        group.append(visit)
        if sum(len(one.anchors) for one in group) >= ANCHORS_PER_STEP:
            yield group
            group = []
    if group:
        yield group


def make_batch(texts: Sequence[Text], anchors: Sequence[Sequence[int]], gamma: int) -> Batch:
    """Of some texts, and anchors of each."""
    ends = [max(chosen) for chosen in anchors]
    offsets = [sum(ends[:index]) for index in range(len(ends))]
    filling = -sum(ends) % ROUND
    longest = torch.arange(max(ends) + -max(ends) % ROUND)
    places = torch.stack(
        [offset + longest.clamp(max=end - 1) for offset, end in zip(offsets, ends, strict=True)]
    )
    most = max(len(chosen) for chosen in anchors)
    parts = [_slots(text, chosen, most, gamma) for text, chosen in zip(texts, anchors, strict=True)]
    seen, inputs, previous, tokens, top_ids, top_probs = (
        torch.stack(column) for column in zip(*parts, strict=True)
    )
    return Batch(
        features=pad(
            torch.cat([text.features[:end] for text, end in zip(texts, ends, strict=True)]),
            (0, 0, 0, filling),
        ),
        positions=torch.cat([torch.arange(end) for end in (*ends, filling)]),
        places=places,
        seen=seen,
        inputs=inputs,
        previous=previous,
        tokens=tokens,
        top_ids=top_ids,
        top_probs=top_probs,
    )


def _slots(text: Text, anchors: Sequence[int], most: int, gamma: int) -> tuple[Tensor, ...]:
    """One text's part of a batch, padded to so many anchors."""
    seen = torch.zeros(most, dtype=torch.int64)
    seen[: len(anchors)] = torch.tensor(anchors)
    all_tokens = text.tokens.long()
    slots = seen[:, None] + torch.arange(1, gamma + 1)
    exists = (seen[:, None] > 0) & (slots < len(all_tokens))
    slots = slots.clamp(max=len(all_tokens) - 1)
    response = (slots - text.prompt_tokens).clamp(min=0)
    return (
        seen,
        all_tokens[seen],
        all_tokens[(slots - 1).clamp(min=0)],
        torch.where(exists, all_tokens[slots], -1),
        text.top_ids[response].long(),
        text.top_probs[response].float(),
    )
