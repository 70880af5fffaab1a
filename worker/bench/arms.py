"""What is compared: plain decoding, each drafter at fixed lengths, and the pair as it serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engine import Engine, Pair
from worker.engine.drafters import Drafter, NoDrafter, weightless_drafter
from worker.engine.planner import Planner, VerifyAll
from worker.engine.types import Method

PLAIN = "plain"


@dataclass(frozen=True)
class Arm:
    """A drafter and a plan for it. Each run has a new drafter: the last one has seen these very outputs."""

    name: str
    method: Method
    gamma: int | None  # proposed and verified for every row and step; None: none, or as the planner decides
    drafter: Callable[[], Drafter]
    planner: Planner


def make_arms(engine: Engine, pair: Pair, gammas: Sequence[int]) -> list[Arm]:
    """Plain decoding first. `engine` has the pair's own drafter and planner."""
    plain = VerifyAll(pair.gamma)
    own_drafter, own_planner = engine.exchange(NoDrafter(), plain)
    arms = [Arm(PLAIN, "none", None, NoDrafter, plain)]
    methods: list[Method] = ["prompt_lookup", "suffix"]
    if pair.method in ("draft_model", "dspark"):
        methods.append(pair.method)
    for method in methods:
        for gamma in gammas:
            planner = VerifyAll(gamma)
            drafter = _drafter(method, planner, own_drafter)
            arms.append(Arm(f"{method} {gamma}", method, gamma, drafter, planner))
    if pair.method != "none":
        drafter = _drafter(pair.method, own_planner, own_drafter)
        arms.append(Arm(f"{pair.method}, planned", pair.method, None, drafter, own_planner))
    return arms


def _drafter(method: Method, planner: Planner, own: Drafter) -> Callable[[], Drafter]:
    if method in ("draft_model", "dspark"):
        return lambda: own  # its weights are loaded once; of rows that ended it keeps nothing
    return lambda: weightless_drafter(method, planner.expected)
