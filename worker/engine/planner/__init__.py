"""Which rows are drafted for, and which proposed tokens are verified: what gives the most tokens a second."""

from worker.engine.planner.adaptive import AdaptivePlanner
from worker.engine.planner.protocol import Planner, VerifyAll
from worker.engine.planner.starting import make_planner

__all__ = ["AdaptivePlanner", "Planner", "VerifyAll", "make_planner"]
