"""Records what the target thinks while it generates, in the drafter's place: there is no second pass."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.distill.text import TOP, Text
from worker.engine.cache import Chunk
from worker.engine.drafters.protocol import Proposal
from worker.engine.rows import Row

_REMEMBERED = 256  # finished texts whose beginnings a new row may have taken over


@dataclass(slots=True, eq=False)
class _Record:
    """Of one row: pieces of consecutive positions, as the passes gave them."""

    tokens: Sequence[int]  # the row's, as they grow
    length: int = 0  # positions that have features
    features: list[Tensor] = field(default_factory=list[Tensor])
    top_ids: list[Tensor] = field(default_factory=list[Tensor])
    top_probs: list[Tensor] = field(default_factory=list[Tensor])

    def beginning(self, length: int) -> list[Tensor]:
        return [torch.cat(self.features)[:length]]


class CapturingDrafter:
    """Proposes nothing. Request ids are the prompts' places; finished texts wait until they are taken."""

    def __init__(self, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self._records: dict[Row, _Record] = {}
        self._ended: deque[_Record] = deque(maxlen=_REMEMBERED)
        self._texts: list[Text] = []
        self.lost = 0  # texts that were not seen whole

    def take(self) -> list[Text]:
        texts, self._texts = self._texts, []
        return texts

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:  # noqa: ARG002 (protocol)
        return [()] * len(rows)

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:
        """A row for each chunk; features [T, m * d] of the chunks' tokens, logits [N, V] of those wanted."""
        kept = features.to("cpu", torch.bfloat16, copy=True)
        top_ids, top_probs = most_probable(logits)
        token, wanted = 0, 0
        for row, chunk in zip(rows, chunks, strict=True):
            end = token + len(chunk.token_ids)
            record = self._record(row, chunk.start)
            record.features.append(kept[token:end])
            record.length += end - token
            if chunk.num_logits:
                record.top_ids.append(top_ids[wanted : wanted + chunk.num_logits])
                record.top_probs.append(top_probs[wanted : wanted + chunk.num_logits])
            token, wanted = end, wanted + chunk.num_logits

    def shareable(self, row: Row) -> int:
        return row.cached

    def forget(self, row: Row) -> None:
        record = self._records.pop(row, None)
        if record is None or row.finish_reason is None:
            return
        self._ended.append(record)
        if record.length != len(row.tokens) - 1 or len(record.top_ids) != row.num_output:
            self.lost += 1  # it was preempted, and what was known of its beginning is gone
            return
        if not isinstance(row.request.id, int):
            raise TypeError(f"a captured request's id is its prompt's place, not {row.request.id!r}")
        self._texts.append(
            Text(
                prompt=row.request.id,
                tokens=torch.tensor(row.tokens, dtype=torch.int32),
                prompt_tokens=row.prompt_tokens,
                features=torch.cat(record.features),
                top_ids=torch.cat(record.top_ids),
                top_probs=torch.cat(record.top_probs),
            )
        )

    def _record(self, row: Row, start: int) -> _Record:
        """The row's, known up to `start`: what another row computed of its beginning counts as its own."""
        record = self._records.setdefault(row, _Record(row.tokens))
        if record.length != start:
            begun = list(row.tokens[:start])
            for other in (*self._records.values(), *self._ended):
                if other.length >= start and list(other.tokens[:start]) == begun:
                    record.features, record.length = other.beginning(start), start
                    break
        return record


def most_probable(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each distribution's TOP tokens, int32, and their probabilities, float16: [N, TOP], on the CPU."""
    values, ids = logits.topk(min(TOP, logits.shape[-1]))
    total = logits.float().logsumexp(dim=-1, keepdim=True)
    return ids.to("cpu", torch.int32), (values.float() - total).exp().to("cpu", torch.float16)
