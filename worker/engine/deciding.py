"""From a pass's logits to the tokens that its rows emit: constraints, the draw, logprobs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.engine.acceptance import count_accepted
from worker.engine.constraints import Span, constrain
from worker.engine.logprobs import measure
from worker.engine.rows import Row
from worker.engine.sampling import choose

Proposal = Sequence[int]


def decide(logits: Tensor, rows: Sequence[Row], proposals: Sequence[Proposal]) -> list[list[int]]:
    """For each row the token after each beginning of its proposal, the empty one and the whole included.

    `logits` [N, V] has these positions row by row, and is overwritten. Rows that want logprobs note them.
    """
    offsets: list[int] = []
    total = 0
    for proposal in proposals:
        offsets.append(total)
        total += len(proposal) + 1
    model = _model_logits(logits, rows, proposals, offsets)
    spans = [
        Span(row.constraints, offset, proposal)
        for row, offset, proposal in zip(rows, offsets, proposals, strict=True)
        if row.constraints is not None
    ]
    draws = [row.draw(i) for row, p in zip(rows, proposals, strict=True) for i in range(len(p) + 1)]
    tokens: list[int] = choose(constrain(logits, spans), draws).tolist()
    chosen = [tokens[o : o + len(p) + 1] for o, p in zip(offsets, proposals, strict=True)]
    if model is not None:
        _note_logprobs(model, rows, proposals, chosen)
    return chosen


def _model_logits(
    logits: Tensor, rows: Sequence[Row], proposals: Sequence[Proposal], offsets: Sequence[int]
) -> Tensor | None:
    """A copy of those that logprobs are wanted of."""
    wanted = [
        position
        for row, proposal, offset in zip(rows, proposals, offsets, strict=True)
        if row.wants_logprobs
        for position in range(offset, offset + len(proposal) + 1)
    ]
    return logits[torch.tensor(wanted, device=logits.device)] if wanted else None


def _note_logprobs(
    model: Tensor, rows: Sequence[Row], proposals: Sequence[Proposal], chosen: Sequence[Sequence[int]]
) -> None:
    positions: list[int] = []
    tokens: list[int] = []
    counts: list[int] = []
    owners: list[Row] = []
    offset = 0
    for row, proposal, choices in zip(rows, proposals, chosen, strict=True):
        wanted = row.request.sampling.logprobs
        if wanted is None:
            continue
        emitted = count_accepted(proposal, choices) + 1
        positions.extend(range(offset, offset + emitted))
        tokens.extend(choices[:emitted])
        counts.extend([wanted] * emitted)
        owners.extend([row] * emitted)
        offset += len(choices)
    index = torch.tensor(positions, device=model.device)
    for row, measured in zip(owners, measure(model[index], tokens, counts), strict=True):
        row.logprobs.append(measured)
