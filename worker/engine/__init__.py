"""Speculative generation as a library: `Engine(pair).generate(prompts)`."""

from worker.engine.engine import Engine
from worker.engine.errors import EngineError
from worker.engine.text import Message
from worker.engine.types import (
    Failure,
    FolderModel,
    Generation,
    HubModel,
    PackageModel,
    Pair,
    Request,
    Sampling,
)

__all__ = [
    "Engine",
    "EngineError",
    "Failure",
    "FolderModel",
    "Generation",
    "HubModel",
    "Message",
    "PackageModel",
    "Pair",
    "Request",
    "Sampling",
]
