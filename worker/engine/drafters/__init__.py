"""Drafters: what proposes the tokens that the target then verifies."""

from worker.engine.drafters.best_of import BestOf
from worker.engine.drafters.draft_model import DraftModel
from worker.engine.drafters.guarded import GuardedDrafter
from worker.engine.drafters.none import NoDrafter
from worker.engine.drafters.prompt_lookup import PromptLookup
from worker.engine.drafters.protocol import Draft, Drafter, Proposal, Refusal
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.drafters.weightless import weightless_drafter

__all__ = [
    "BestOf",
    "Draft",
    "DraftModel",
    "Drafter",
    "GuardedDrafter",
    "NoDrafter",
    "PromptLookup",
    "Proposal",
    "Refusal",
    "SuffixDrafter",
    "weightless_drafter",
]
