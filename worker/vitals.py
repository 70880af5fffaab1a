"""Signs of life of a worker process, read by its watchdog from another thread."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vitals:
    """Counters only grow: one that stands still tells of a thread that does."""

    runner_alive: bool
    turns: int  # of the runner's loop
    engine_alive: bool
    steps: int  # begun by the engine
    is_stepping: bool
    claims: int  # asked of the database
    is_hungry: bool  # there is room for prompts, and no bell to claim for
