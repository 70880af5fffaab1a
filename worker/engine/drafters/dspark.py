"""Proposes a block at once, from features of the target that its own passes have shown (arXiv 2607.05147)."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from worker.engine.cache import CacheFull, Chunk
from worker.engine.constraints import Span, constrain
from worker.engine.drafters.backlog import Backlog
from worker.engine.drafters.protocol import Draft, Proposal, Refusal
from worker.engine.dspark.cached import CachedNetwork
from worker.engine.rows import Row
from worker.engine.sampling import NOT_FINITE, choose
from worker.engine.transfer import to_device

GREEDY, SAMPLED = "dspark", "dspark sampled"  # sources of drafts: acceptance differs
_MOST_WAITING = 64 << 20  # bytes of features that are kept
_UNSOUND = "the drafter's output was not a finite number"


class DSparkDrafter:
    """One pass for all rows; then token by token, each with the row's own options and noise."""

    def __init__(self, network: CachedNetwork, vocab_size: int) -> None:
        self._network = network
        self._vocab_size = vocab_size
        self._backlog = Backlog()
        self._contexts: dict[Row, tuple[int, Tensor]] = {}  # of each row's newest positions, from the first
        ids = network.token_ids
        whole = torch.arange(vocab_size, device=ids.device)
        self._ids = None if torch.equal(ids, whole) else ids  # the target's, of what is proposed

    @property
    def taps(self) -> tuple[int, ...]:
        return self._network.config.taps

    def observe(self, rows: Sequence[Row], chunks: Sequence[Chunk], features: Tensor, logits: Tensor) -> None:  # noqa: ARG002 (part of the protocol)
        """Of an output they wait until a block is asked for; others may begin with what a prompt's are."""
        self._backlog.add(rows, chunks, features.clone())  # the next pass overwrites them
        of_prompts = [r for r, chunk in zip(rows, chunks, strict=True) if chunk.start < r.prompt_tokens]
        self._take_in(self._backlog.rows if self._backlog.num_bytes > _MOST_WAITING else of_prompts)

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        self._take_in(rows)
        config = self._network.config
        proposals: dict[Row, Proposal] = dict.fromkeys(rows, ())
        longest = self._network.context_limit - config.block_inputs  # beyond it a block has no room
        able = [i for i, row in enumerate(rows) if row.cached <= longest and self._knows(row)]
        some = [rows[i] for i in able]
        if some:
            most = [min(limits[i], config.block_size) for i in able]
            try:
                hidden = self._network.run_blocks(
                    [row.slot for row in some],
                    [row.cached for row in some],
                    [row.tokens[-1] for row in some],
                    max(most),  # a shorter one takes less time, and of our own drafter is no worse
                    self._last_contexts(some),
                )
            except CacheFull:  # the target's pass makes room, or ends a row
                return list(proposals.values())
            proposals |= zip(some, self._draft(some, most, hidden), strict=True)
        return [proposals[row] for row in rows]

    def shareable(self, row: Row) -> int:
        """What still waits is not taken in for those who may come: few prompts go on where another ended."""
        return 0 if row.spec_disabled_reason else min(row.cached, self._backlog.start(row, row.cached))

    def forget(self, row: Row) -> None:
        self._backlog.drop(row)
        self._contexts.pop(row, None)

    def _take_in(self, rows: Sequence[Row]) -> None:
        """What the target has shown of these rows goes into the network's keys and values."""
        if not rows:
            return
        for row in rows:
            if row.spec_disabled_reason == _UNSOUND:
                self._backlog.drop(row)
        some, chunks, features = self._backlog.take(rows)
        if not some:
            return
        context = self._network.extend(chunks, features)
        if not self._network.config.feeds_last_feature:
            return
        ends = accumulate(len(chunk.token_ids) for chunk in chunks)
        for row, chunk, end in zip(some, chunks, ends, strict=True):
            length = min(len(chunk.token_ids), self._network.config.block_size + 1)
            self._contexts[row] = chunk.end - length, context[end - length : end]

    def _knows(self, row: Row) -> bool:
        """What precedes the anchor was in the row's last pass, unless it was not told of that."""
        if not self._network.config.feeds_last_feature:
            return True
        start, newest = self._contexts.get(row, (0, ()))
        return start < row.cached <= start + len(newest)

    def _last_contexts(self, rows: Sequence[Row]) -> Tensor | None:
        if not self._network.config.feeds_last_feature:
            return None
        known = [(row, *self._contexts[row]) for row in rows]
        return torch.stack([newest[row.cached - 1 - start] for row, start, newest in known])

    def _draft(self, rows: Sequence[Row], limits: Sequence[int], hidden: Tensor) -> list[Proposal]:
        guesses, embedded = self._guess(rows, hidden)
        confidence = self._network.confidence(hidden, embedded)
        told: list[list[float]] = [[] for _ in rows] if confidence is None else confidence.tolist()
        finite: list[bool] = hidden.flatten(1).isfinite().all(dim=1).tolist()
        said: list[list[int]] = guesses.tolist()
        drafts: list[Proposal] = []
        for row, limit, tokens, sure, sound in zip(rows, limits, said, told, finite, strict=True):
            if not sound:
                self._network.erase(row.slot, row.cached + self._network.config.inputs_for(hidden.shape[1]))
                drafts.append(Refusal(_UNSOUND))
                continue
            source = SAMPLED if row.request.sampling.temperature > 0 else GREEDY
            end = tokens.index(NOT_FINITE) if NOT_FINITE in tokens else len(tokens)
            drafts.append(Draft(tokens[: min(limit, end)], source=source, confidence=sure))
        return drafts

    def _guess(self, rows: Sequence[Row], hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens [R, positions] for hidden [R, positions, d], and the embeddings of those before each.

        NOT_FINITE where nothing can be said: nothing of the draft vocabulary is allowed.
        """
        logits = self._network.logits(hidden)
        anchors = [row.tokens[-1] for row in rows]
        is_plain = all(row.constraints is None and row.request.sampling.temperature == 0 for row in rows)
        if is_plain and (guessed := self._network.guess(logits, anchors)) is not None:
            return guessed
        previous = to_device(torch.tensor(anchors), hidden.device)
        tokens: list[Tensor] = []
        embeddings: list[Tensor] = []
        state: Tensor | None = None
        for position in range(hidden.shape[1]):
            scores = logits[:, position].contiguous()  # for the kernels that choose
            bias, embedded, state = self._network.bias(previous, hidden[:, position], state)
            if bias is not None and embedded is not None:
                scores = scores + bias
                embeddings.append(embedded)
            tokens.append(self._choose(rows, scores, tokens))
            previous = tokens[-1].clamp(min=0)
        return torch.stack(tokens, dim=1), torch.stack(embeddings, dim=1) if embeddings else None

    def _choose(self, rows: Sequence[Row], scores: Tensor, before: Sequence[Tensor]) -> Tensor:
        """Of scores [R, draft vocabulary] a token of the target's for each row."""
        draws = [row.draw(ahead=len(before)) for row in rows]
        if all(row.constraints is None for row in rows):
            return choose(scores, draws, token_ids=self._ids)
        guesses: list[list[int]] = torch.stack(tuple(before), dim=1).tolist() if before else [[]] * len(rows)
        spans = [
            Span(row.constraints, index, ahead, first=len(ahead))
            for index, (row, ahead) in enumerate(zip(rows, guesses, strict=True))
            if row.constraints is not None and NOT_FINITE not in ahead
        ]
        whole = scores.new_full((len(rows), self._vocab_size), -torch.inf)
        whole.index_copy_(1, self._network.token_ids, scores)
        return choose(constrain(whole, spans), draws)
