"""What the readers yield: items worth running, and bad items with their place."""

from dataclasses import dataclass, field
from typing import Any


class InputError(Exception):
    """The submission as a whole cannot be read; the message says where and what to do."""


class RowError(Exception):
    """One row or file is no prompt; whoever knows its place turns this into a BadItem."""


@dataclass(frozen=True, slots=True)
class BadItem:
    """One row or file that cannot be run: where it is, what was expected."""

    path: str
    line: int | None
    message: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.message}"


@dataclass(slots=True)
class Item:
    """One prompt as given. Exactly one of `messages` (chat) and `text` (raw) is set."""

    path: str
    line: int | None = None
    custom_id: str = ""  # empty until the reader names it
    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    n: int | None = None
    metadata: dict[str, Any] | None = None
    model: str | None = None  # what an OpenAI line asked for; the pair decides, this is kept in metadata
