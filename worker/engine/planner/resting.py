"""Planning takes time too: while all that it brings is less, most steps do without."""

_SHORTEST, _LONGEST = 8, 128  # steps without
_TRIAL = 2  # steps with, in between: in the first a drafter may have to catch up
_SHARE = 0.005  # of the time may go into trials
_JUDGED_AFTER = 16  # steps with
_MARGIN = 0.06  # of a step, that planning must save beyond what it takes
_SLOW, _FAST = 0.03, 0.2  # a rest needs both: what steps save comes in spells
_ALIKE = 1.5  # times as many rows, or as few: else a rest is over
_OCTAVES = 16  # of rows: 1, 2, 3 to 4, 5 to 8, ...: those that are left of a full load belong to it
_CLIP = 2.0  # of what a step usually takes: one that hung must not decide


class Resting:
    """Running means, by octaves of rows in flight, of what a plan saves and what it takes, in plain steps."""

    def __init__(self) -> None:
        self._saved = [0.0] * _OCTAVES
        self._spent = [0.0] * _OCTAVES
        self._steps = [0] * _OCTAVES
        self._trial, self._trial_spent = 0, 0.0
        self._lately = 0.0  # saved beyond what is needed, in this trial
        self._rows = 0  # in flight when the rest began
        self._left = 0

    def takes_this_step(self, in_flight: int) -> bool:
        """Whether it is one without; far more or fewer rows end a rest."""
        if not self._left:
            return False
        if not self._rows / _ALIKE <= in_flight <= self._rows * _ALIKE:
            self._left = 0
            return False
        self._left -= 1
        return True

    def learn(self, in_flight: int, saved: float, spent: float, plain: float) -> None:
        """A step was planned: it saves so many seconds of plain decoding, and its plan took so many.

        `plain` are those of a step without.
        """
        saved, spent = saved / plain, spent / plain
        self._trial += 1
        self._trial_spent += spent
        if self._trial == 1 and self._rows:
            return
        at = min((in_flight - 1).bit_length(), _OCTAVES - 1)
        self._steps[at] += 1
        rate = max(_SLOW, 1 / self._steps[at])
        if self._steps[at] > 1:
            spent = min(spent, _CLIP * self._spent[at])
        self._saved[at] += rate * (saved - self._saved[at])
        self._spent[at] += rate * (spent - self._spent[at])
        self._lately += max(_FAST, 1 / self._trial) * (saved - spent - _MARGIN - self._lately)
        if self._trial < _TRIAL or self._steps[at] < _JUDGED_AFTER:
            return
        if self._saved[at] < self._spent[at] + _MARGIN and self._lately < 0:
            fair = self._trial_spent / self._trial * _TRIAL / _SHARE
            self._rows, self._left = in_flight, round(min(max(fair, _SHORTEST), _LONGEST))
            self._trial, self._trial_spent, self._lately = 0, 0.0, 0.0
