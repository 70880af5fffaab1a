"""Which proposed tokens to verify: the cut-off over all rows that yields the most tokens a second."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


def best_cut(
    survival: Floats, times: Floats, spent: float, at_least: int = 0, margin: float = 0.0
) -> Integers:
    """How many tokens of each row to verify: the best of all cut-offs, which admit the most probable first.

    `survival` [R, gamma] falls along a row, and is 0 where nothing was proposed: that is never admitted.
    `times[e]` are the seconds of a step that verifies e proposed tokens; `spent` went into drafting them.
    Admitting anything must bring more than admitting nothing by `margin`, a share.
    """
    num_rows = len(survival)
    # Position by position, so that of equal ones a row's earlier token comes first: prefixes stay prefixes.
    flat = survival.T.ravel()
    order = np.argsort(-flat, kind="stable")[: np.count_nonzero(flat)]
    tokens = num_rows + np.concatenate(([0.0], flat[order].cumsum()))
    rates = tokens / (times[: len(tokens)] + spent)
    rates[0] *= 1 + margin
    at_least = min(at_least, len(order))
    admitted = at_least + int(rates[at_least:].argmax())
    return np.bincount(order[:admitted] % num_rows, minlength=num_rows)
