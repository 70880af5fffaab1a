"""Drafters: what proposes the tokens that the target then verifies."""

from worker.engine.drafters.best_of import BestOf
from worker.engine.drafters.draft_model import DraftModel
from worker.engine.drafters.dspark import DSparkDrafter
from worker.engine.drafters.guarded import GuardedDrafter, taps_of
from worker.engine.drafters.lookup_first import LookupFirst
from worker.engine.drafters.none import NoDrafter
from worker.engine.drafters.prompt_lookup import PromptLookup
from worker.engine.drafters.protocol import Draft, Drafter, Observer, Proposal, Refusal
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.drafters.weightless import weightless_drafter

__all__ = [
    "BestOf",
    "DSparkDrafter",
    "Draft",
    "DraftModel",
    "Drafter",
    "GuardedDrafter",
    "LookupFirst",
    "NoDrafter",
    "Observer",
    "PromptLookup",
    "Proposal",
    "Refusal",
    "SuffixDrafter",
    "taps_of",
    "weightless_drafter",
]
