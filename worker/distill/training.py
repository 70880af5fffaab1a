"""The training loop: a budget of steps and time, progress by tau, checkpoints that it continues from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from time import monotonic

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.distill.attending import block_outputs
from worker.distill.batches import Batch, Chances, Visit, make_batch, plan_epoch
from worker.distill.loss import Slots, distances
from worker.distill.text import Text
from worker.engine.dspark.network import DSparkNetwork
from worker.errors import ConfigurationError

LEARNING_RATE = 6e-4
CONTINUED_RATE = 4e-4  # of a drafter that has learnt before: it shall not forget
_WARM_UP = 0.04  # of the run
_CLIP = 1.0
_PATIENCE = 8  # notes without a higher tau
_SLOT_DECAY = 4.0  # weights exp(-(k - 1) / 4): a slot counts only if those before it were right
_CE = (0.5, 0.1)  # from, to: the distance's gradient vanishes where distributions hardly overlap


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may take: it ends with whichever comes first."""

    epochs: float
    seconds: float = math.inf


@dataclass(slots=True)
class Progress:
    """How far a run is; all of it is in its checkpoint."""

    step: int = 0
    seconds: float = 0.0
    anchors: int = 0
    taus: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])  # after so many anchors


class Trainer:
    def __init__(
        self,
        network: DSparkNetwork,
        texts: Sequence[Text],
        chances: Sequence[Chances],
        budget: Budget,
        seed: int,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        """`chances`: of each text. `learning_rate`: the schedule's highest.

        The network computes in its own dtype; what the optimizer moves are float32 copies of its weights.
        """
        self.network = network
        self.progress = Progress()
        self._texts, self._chances, self._budget, self._seed = texts, chances, budget, seed
        self._learning_rate = learning_rate
        config = network.config
        self._device = network.norm.weight.device
        self._head = network.lm_head.weight.detach()
        self._places = torch.full((config.vocab_size,), -1, device=self._device)
        self._places[network.token_ids] = torch.arange(len(network.token_ids), device=self._device)
        self._weights = torch.exp(-torch.arange(config.block_size) / _SLOT_DECAY)
        self._parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._masters = [parameter.detach().float().clone() for parameter in self._parameters]
        self._best = self._masters
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=0.0, weight_decay=0.0, betas=(0.9, 0.95), fused=True
        )
        self._epoch: tuple[int, list[list[Visit]]] = (0, plan_epoch(chances, seed))
        self._steps_per_epoch = len(self._epoch[1])  # a later one may have some more or fewer

    @property
    def share(self) -> float:
        """Of the run that is done."""
        steps = self._budget.epochs * self._steps_per_epoch
        return max(self.progress.step / steps, self.progress.seconds / self._budget.seconds)

    def run(self, pause: Callable[[float], bool], pauses: int) -> None:
        """Train until the budget is spent, or `pause` says so: asked so many times, with the mean loss since.

        What `pause` takes is no training time.
        """
        losses: list[float] = []
        began, spent = monotonic(), self.progress.seconds
        while (share := self.share) < 1:
            losses.append(self.step())
            self.progress.seconds = spent + monotonic() - began
            if self.share >= 1 or int(self.share * pauses) > int(share * pauses):
                if pause(sum(losses) / len(losses)):
                    return
                losses.clear()
                began, spent = monotonic(), self.progress.seconds

    def step(self) -> float:
        """One update; its loss."""
        self.network.train()
        batch = self._next_batch()
        rate = self._learning_rate * _schedule(self.share)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.network.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        nn.utils.clip_grad_norm_(self._masters, _CLIP)
        self._optimizer.step()
        self._publish()
        self.progress.step += 1
        self.progress.anchors += batch.num_anchors
        return float(loss.detach())

    def loss(self, batch: Batch) -> Tensor:
        """The mean over slots: CE and distance by schedule, and confidence.

        A slot is looked at with a probability equal to its weight: logits are most of a step.
        """
        ce = _CE[0] + (_CE[1] - _CE[0]) * min(1.0, 2 * self.share)
        generator = torch.Generator().manual_seed(self._seed + self.progress.step)
        lucky = (torch.rand(batch.tokens.shape, generator=generator) < self._weights).to(self._device)
        chosen = (lucky & (batch.tokens >= 0)).flatten().nonzero().flatten()
        hidden = block_outputs(self.network, batch).flatten(0, 2).index_select(0, chosen)
        slots = Slots(
            tokens=self._places[batch.tokens.flatten()[chosen]],
            top_ids=self._places[batch.top_ids.flatten(0, 2)[chosen]],
            top_probs=batch.top_probs.flatten(0, 2)[chosen],
        )
        markov, confidence = self.network.markov_head, self.network.confidence_head
        if markov is None:
            embedded, w2 = hidden.new_zeros(len(hidden), 0), self._head.new_zeros(len(self._head), 0)
        else:
            embedded, w2 = markov.embed(batch.previous.flatten()[chosen]), markov.markov_w2.weight
        loss, distance = distances(hidden, embedded, self._head, w2, slots, ce, 1 - ce)
        if confidence is not None:
            sure = confidence(hidden, None if markov is None else embedded).float()
            loss = loss + binary_cross_entropy_with_logits(sure, (1 - 0.5 * distance).clamp(0, 1))
        return loss

    def save(self, file: Path) -> None:
        unfinished = file.with_suffix(".unfinished")
        torch.save(self._state(), unfinished)
        unfinished.replace(file)

    def load(self, file: Path) -> None:
        """Continue from there, with the budget it was saved with.

        Raises ConfigurationError if it is no checkpoint, or one of another version, or proposes from another
        vocabulary: other texts or options lead to that.
        """
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, UnpicklingError) as error:
            raise ConfigurationError(
                f"{file} cannot be read as a checkpoint: delete it to begin anew, or name another --output"
            ) from error
        if missing := self._state().keys() - state.keys():
            raise ConfigurationError(
                f"{file} lacks {', '.join(sorted(missing))}: another version of Specmill wrote it. Delete it "
                "to begin anew, or name another --output, and --begin-from the drafter beside it to keep that"
            )
        if not torch.equal(state["token_ids"], self.network.token_ids.cpu()):
            raise ConfigurationError(
                f"{file} is of a drafter with another vocabulary: continue it with the options that it began "
                "with (--tokens, --draft-vocab, --begin-from), or name another --output"
            )
        self._set(state["weights"])
        self._best = [weight.to(self._device) for weight in state["best"]]
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])

    def _copies(self) -> list[Tensor]:
        """Of the weights as they are now."""
        return [master.detach().clone() for master in self._masters]

    def _state(self) -> dict[str, object]:
        return {
            "token_ids": self.network.token_ids,
            "weights": self._masters,
            "best": self._best,
            "optimizer": self._optimizer.state_dict(),
            "progress": asdict(self.progress),
        }

    def note(self, tau: float) -> None:
        """What the network reaches now."""
        if not self.progress.taus or tau >= max(tau for _, tau in self.progress.taus):
            self._best = self._copies()
        self.progress.taus.append((self.progress.anchors, tau))

    def take_best(self, judge: Callable[[], float]) -> None:
        """Of the last weights, and those that reached the highest tau, the better by `judge`.

        Which knows more texts than tau: the highest of many notes is partly luck.
        """
        last = self._copies()
        if all(torch.equal(one, other) for one, other in zip(last, self._best, strict=True)):
            return
        judged = judge()
        self._set(self._best)
        if judge() <= judged:
            self._set(last)

    @property
    def is_stuck(self) -> bool:
        """Tau has long not risen: what is left of the run will hardly help.

        Not in its first half: at a high rate a drafter that has learnt before falls back first.
        """
        taus = [tau for _, tau in self.progress.taus]
        best = max(range(len(taus)), key=lambda place: (taus[place], place), default=0)
        return self.share > 0.5 and len(taus) - 1 - best >= _PATIENCE

    @torch.no_grad()
    def _set(self, weights: Sequence[Tensor]) -> None:
        for master, weight in zip(self._masters, weights, strict=True):
            master.copy_(weight)
        self._publish()

    @torch.no_grad()
    def _publish(self) -> None:
        """The network computes with what the optimizer has made of its weights."""
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            parameter.copy_(master)

    def _next_batch(self) -> Batch:
        wanted, place = divmod(self.progress.step, self._steps_per_epoch)
        if wanted != self._epoch[0]:
            self._epoch = wanted, plan_epoch(self._chances, self._seed + wanted)
        epoch = self._epoch[1]
        visits = epoch[place % len(epoch)]
        texts = [self._texts[visit.text] for visit in visits]
        gamma = self.network.config.block_size
        return make_batch(texts, [visit.anchors for visit in visits], gamma).to(self._device)


def _schedule(share: float) -> float:
    """Of the learning rate: a warm-up, then half a cosine."""
    if share < _WARM_UP:
        return (share + 1e-3) / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (share - _WARM_UP) / (1 - _WARM_UP))))
