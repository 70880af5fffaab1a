"""Reading what a test has written, good and bad apart."""

from pathlib import Path
from typing import Any

from producer.inputs import BadItem, InputOptions, Item, Reader


def read(*paths: Path, **options: Any) -> tuple[list[Item], list[str]]:
    """Items, and bad items as they are shown."""
    found = list(Reader(paths, InputOptions(**options)))
    return [i for i in found if isinstance(i, Item)], [str(i) for i in found if isinstance(i, BadItem)]


def prompts(items: list[Item]) -> list[str | None]:
    """What each item's last message, or raw text, says."""
    return [item.messages[-1]["content"] if item.messages else item.text for item in items]
