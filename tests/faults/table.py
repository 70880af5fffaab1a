"""What the table's engine answers, known to the campaign as well: text, length and faults, by prompt."""

import hashlib

PAIR = "table"

POISON = "poison"  # a prompt with this word kills its process
STEP_SECONDS = 0.02
MOST_STEPS = 16


def answer(prompt: str, sample_index: int) -> str:
    return f"{_digest(prompt, sample_index).hex()[:16]} answers {prompt}"


def steps(prompt: str, sample_index: int) -> int:
    """How many steps its row stays in the engine."""
    return 1 + _digest(prompt, sample_index)[-1] % MOST_STEPS


def _digest(prompt: str, sample_index: int) -> bytes:
    return hashlib.sha256(f"{sample_index} {prompt}".encode()).digest()
