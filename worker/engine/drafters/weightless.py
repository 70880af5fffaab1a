"""Methods that need no model of their own."""

from worker.engine.drafters.best_of import BestOf, Judge
from worker.engine.drafters.none import NoDrafter
from worker.engine.drafters.prompt_lookup import PromptLookup
from worker.engine.drafters.protocol import Drafter
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.types import Method


def weightless_drafter(method: Method, judge: Judge) -> Drafter:
    """A new drafter, which has seen no text yet."""
    match method:
        case "none":
            return NoDrafter()
        case "prompt_lookup":
            return PromptLookup()
        case "suffix":
            return BestOf([PromptLookup(), SuffixDrafter()], judge)
        case "draft_model" | "dspark":
            raise ValueError(f"{method} drafts with a model")
