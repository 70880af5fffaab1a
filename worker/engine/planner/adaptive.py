"""Each step takes the plan that should give the most tokens a second, plain decoding among them."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from worker.engine.drafters.protocol import Draft
from worker.engine.planner.costs import DraftCosts, StepCosts
from worker.engine.planner.depths import Depths
from worker.engine.planner.resting import Resting
from worker.engine.planner.search import Booleans, Floats, Integers, best_cut
from worker.engine.planner.survival import RunningRates, Stream, Survival
from worker.engine.planner.urgency import Urgency
from worker.engine.planner.worth import Worth

MARGIN = 0.01  # of gain, before a drafter is asked or a token verified: estimates err, the best one's most
PROBE_SHARE = 0.005  # of the time goes into asking for rows that would not be asked for
_PRICE_RATE = 0.5  # at which what probes take is followed
_PROBED = 8  # rows: with all of many the drafter would have to catch up on all that they have said
_CAUGHT_UP = 0.85  # of rows: so many were there in the step before, others have just come
_LONGEST = 4.0  # of what is known: a block that hung must not decide
_KEPT = 0.9  # of what plans promise, all in all: the best of many is the one most overestimated
_FILLS = 16  # steps at the beginning, in which rows may come in
PROBE_STEPS = 100  # without verifying anything, or without plain decoding, and one step does
_ALL_TIMED, _TIMED_EVERY = 100, 4  # steps: the first are all timed, then one of so many
_URGENT = 0.9  # tokens that one counts for
_NEXT_TO_NOTHING = 0.004  # a drafter that takes less of a step is asked for all rows, to the full depth


class AdaptivePlanner:
    """Decides before drafting who is asked for proposals, and after it which of them are verified.

    What was proposed and not verified is learnt from all the same, as the rows' tokens come. So trying is
    needed only where nothing was proposed (drafting), and where nothing was timed (verifying, plain steps).
    """

    def __init__(
        self,
        gamma: int,
        survival: Survival | None = None,
        costs: StepCosts | None = None,
        *,
        in_blocks: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`in_blocks`: most of the drafter's pass costs the same, however few of its tokens are asked for."""
        self._gamma = gamma
        self._in_blocks = in_blocks
        self.survival: Survival = survival or RunningRates(gamma)
        self.costs = costs or StepCosts()
        self._draft_costs = DraftCosts()
        self._depths = Depths(gamma)
        self._worth = Worth()
        self._savings = 0.0  # seconds that may go into probes
        self._resting = Resting()
        self._clock = clock
        self._steps = 0
        self._planning = 0.0  # seconds that went into this step's plan
        self._since_plain = self._since_verified = 0
        self._asked: list[int] = []  # of this step's rows, by index
        self._depth = gamma
        self._probed: set[Stream] = set()  # rows of this step's probe, if it is the first of two
        self._catching_up = 0.0  # seconds that such a step's drafting takes
        self._asked_before: set[Stream] = set()
        self._in_flight_before: set[Stream] = set()
        self._fills_left = _FILLS
        self._is_usual = False  # no more rows are asked than pay
        self._is_planned = False  # else it rests: a plain one, or the second of a probe
        self._verified = 0
        self._urgency = Urgency()
        self._remaining: Sequence[int] | None = None  # tokens of this step's rows, where no others wait

    def draft_limits(
        self, rows: Sequence[Stream], speculation: bool, remaining: Sequence[int] | None = None
    ) -> list[int] | None:
        began = self._clock()
        probed, self._probed = self._probed, set()
        self._asked, self._depth, self._is_planned, self._is_usual = [], self._gamma, False, True
        if not speculation or self._since_plain >= PROBE_STEPS:
            return None
        is_resting = self._resting.takes_this_step(len(rows))
        if is_resting and not probed:
            return None
        if self._in_blocks and self._fills_left and self._is_filling(rows):
            return None
        self._is_planned = not is_resting
        self._remaining = remaining
        self.survival.settle(rows)
        times = self.costs.times(len(rows), len(rows) * self._gamma)
        everyone = self._draft_costs.seconds(len(rows), self._units(self._gamma))
        if everyone <= _NEXT_TO_NOTHING * times[0]:
            self._asked = list(range(len(rows)))
            if self._in_blocks and not self._draft_costs.is_known:
                self._is_usual = False
                self._probed = set() if probed else set(rows)  # what the first block takes says little
        else:
            self._depth = self._best_depth(len(rows), times)
            self._asked = self._worth_asking(rows, float(times[0]))
            self._probe(rows, float(times[0]), probed)
        limits = np.zeros(len(rows), dtype=np.int64)
        limits[self._asked] = self._depth
        self._planning = self._clock() - began
        return limits.tolist()

    def verify_lengths(
        self, rows: Sequence[Stream], drafts: Sequence[Draft], draft_seconds: float
    ) -> list[int]:
        began = self._clock()
        lengths, saved = np.zeros(len(rows), dtype=np.int64), 0.0
        if self._probed and self._draft_costs.is_known:  # the very first block is not warm, and no measure
            known = max(
                self._draft_costs.seconds(len(self._asked), self._units(self._depth)), self._catching_up
            )
            self._catching_up += _PRICE_RATE * (min(draft_seconds, _LONGEST * known) - self._catching_up)
        asked = {rows[index] for index in self._asked}
        is_caught_up = len(asked & self._asked_before) >= _CAUGHT_UP * len(asked)
        if asked and is_caught_up and not self._probed and (self._is_timed or not self._is_usual):
            self._draft_costs.observe(len(asked), self._units(self._depth), draft_seconds)
        self._asked_before = asked
        if self._asked or any(draft.tokens for draft in drafts):
            lengths, saved = self._choose(rows, drafts, draft_seconds)
        if self._is_planned:
            spent = self._planning + draft_seconds + self._clock() - began
            self._resting.learn(len(rows), saved, spent, float(self.costs.times(len(rows), 0)[0]))
        self._verified = len(rows) + int(lengths.sum())
        return lengths.tolist()

    def observe(self, num_rows: int, step_seconds: float) -> None:
        is_plain = self._verified == num_rows
        if self._is_timed or is_plain != (self._since_plain == 0):  # a probe that is not timed is for nothing
            self.costs.observe(num_rows, self._verified, step_seconds)
        self._steps += 1
        self._since_plain = 0 if is_plain else self._since_plain + 1
        self._savings += PROBE_SHARE * step_seconds

    def expected(self, row: Stream, draft: Draft) -> float:
        return self.survival.expected(row, draft)

    def forget(self, row: Stream) -> None:
        self.survival.forget(row)
        self._worth.forget(row)
        self._urgency.forget(row)
        self._in_flight_before.discard(row)

    @property
    def _is_timed(self) -> bool:
        """Whether this step's times are learnt from, which takes time itself."""
        return self._steps < _ALL_TIMED or self._steps % _TIMED_EVERY == 0

    def _is_filling(self, rows: Sequence[Stream]) -> bool:
        """Whether the first rows still come in: a block for them would tell little, and be tried again."""
        before, self._in_flight_before = self._in_flight_before, set(rows)
        is_filling = len(before & self._in_flight_before) < _CAUGHT_UP * len(rows)
        self._fills_left = self._fills_left - 1 if is_filling else 0
        return is_filling

    def _worth_asking(self, rows: Sequence[Stream], plain: float) -> list[int]:
        """The rows, best first, that give the most tokens a second with what drafting for them takes."""
        worth = self._worth.estimate(len(rows), rows)
        order = np.argsort(-worth, kind="stable")
        drafting = self._draft_costs.up_to(len(rows), self._units(self._depth))
        tokens = len(rows) + np.concatenate(([0.0], worth[order].cumsum()))
        rates = tokens / (plain + drafting)
        best = int(rates.argmax())
        return order[:best].tolist() if rates[best] > (1 + MARGIN) * rates[0] else []

    def _best_depth(self, num_rows: int, times: Floats) -> int:
        """How far all rows should be drafted, by the pair's rates."""
        if self._in_blocks:
            return self._depths.best(num_rows, float(times[0]))
        survival = self.survival.typical()
        depths = np.arange(1, self._gamma + 1)
        drafting = depths * self._draft_costs.seconds(num_rows, 1)
        rates = num_rows * (1 + survival.cumsum()) / (times[num_rows * depths] + drafting)
        return int(rates.argmax()) + 1

    def _units(self, depth: int) -> int:
        """Passes of the drafter, for so many tokens: a block takes one, and a little less for fewer."""
        return 1 if self._in_blocks else depth

    def _probe(self, rows: Sequence[Stream], plain: float, probed: set[Stream]) -> None:
        """Ask for some others too, once enough was saved for it; and for the same in the next step.

        `probed` were in the step before: what they take now, they would take if asked for in every step.
        """
        if len(self._asked) == len(rows):
            return
        if again := [index for index, row in enumerate(rows) if row in probed]:
            self._is_usual = False
            self._asked, self._depth = sorted({*self._asked, *again}), self._gamma
            return
        apart = -(-len(rows) // _PROBED)
        asked = sorted({*self._asked, *range(self._steps % apart, len(rows), apart)})
        price = self._catching_up + self._draft_costs.seconds(len(asked), self._units(self._gamma))
        price -= 2 * self._draft_costs.seconds(len(self._asked), self._units(self._depth))
        price = max(price, 0.0)
        self._savings = min(self._savings, max(2 * price, plain))
        if self._savings >= price:
            self._savings -= price
            self._is_usual = False
            self._asked, self._depth, self._probed = asked, self._gamma, {rows[index] for index in asked}

    def _choose(
        self, rows: Sequence[Stream], drafts: Sequence[Draft], draft_seconds: float
    ) -> tuple[Integers, float]:
        """How many tokens to verify, and the seconds that plain decoding should take longer for as many."""
        survival = self.survival.estimate(rows, drafts)
        promised: list[float] = survival.sum(axis=1).tolist()
        asked = set(self._asked)  # of others without a proposal nobody knows what they would gain
        known = [i for i, tokens in enumerate(promised) if tokens or i in asked]
        self._urgency.learn([rows[i] for i in known], [promised[i] for i in known])
        weights = self._urgency.weights(rows, self._remaining, self.costs.fixed_share(len(rows)))
        survival *= weights[:, None]
        for row, draft in zip(rows, drafts, strict=True):
            self.survival.watch(row, draft)
        times = self.costs.times(len(rows), int(np.count_nonzero(survival)))
        lengths = best_cut(survival, times, draft_seconds, margin=MARGIN)
        if not lengths.any() and survival.any():
            self._since_verified += 1
            if self._since_verified >= PROBE_STEPS:
                lengths = best_cut(survival, times, draft_seconds, at_least=1)
        if lengths.any():
            self._since_verified = 0
        if self._asked:
            # Of a block: what was looked up would have come unasked. It gains and costs nothing.
            is_unasked = np.array([self._in_blocks and draft.match > 0 for draft in drafts])
            gains = _gains(survival, lengths, np.where(is_unasked, 0, lengths), times)[self._asked]
            is_urgent = weights[self._asked] > _URGENT
            if self._in_blocks and self._is_usual and is_urgent.all() and not is_unasked[self._asked].all():
                self._depths.learn(len(rows), gains[:, : self._depth].sum(axis=0), draft_seconds)
            if self._draft_costs.is_known or not self._probed:  # after a cold block all seems cheap
                self._learn_worth(rows, gains.sum(axis=1), is_urgent)
        extra = float(times[int(lengths.sum())] - times[0])
        promised_seconds = float(_accepted(survival, lengths).sum() / len(rows) * times[0])
        return lengths, _KEPT * promised_seconds - extra

    def _learn_worth(self, rows: Sequence[Stream], gains: Floats, is_urgent: Booleans) -> None:
        """What the asked rows gain.

        Of those that end in time by themselves little is verified: that says nothing of what they are worth.
        """
        if is_urgent.any():
            asked = [rows[index] for index, counts in zip(self._asked, is_urgent, strict=True) if counts]
            self._worth.learn(len(rows), asked, gains[is_urgent])


def _accepted(survival: Floats, lengths: Integers) -> Floats:
    """[R, gamma]: what of each row's tokens is expected to be accepted, of so many that are verified."""
    return survival * (np.arange(survival.shape[1]) < lengths[:, None])


def _gains(survival: Floats, lengths: Integers, asked_for: Integers, times: Floats) -> Floats:
    """[R, gamma]: tokens that verifying brings, less its share of the longer step in those of plain decoding.

    `lengths` are verified, of which `asked_for` were asked for.
    """
    admitted = int(lengths.sum())
    price = len(lengths) * (times[admitted] / times[0] - 1) / max(admitted, 1)
    return _accepted(survival - price, asked_for)
