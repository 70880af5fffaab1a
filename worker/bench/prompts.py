"""The prompts that a pair is measured on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from worker.engine.errors import PromptError
from worker.engine.text import Message, render
from worker.errors import ConfigurationError


@dataclass(frozen=True)
class Prompt:
    place: str  # file and line
    messages: list[Message]
    kind: str = ""  # what sort of prompt it is, where the file says so


def read_prompts(file: Path) -> list[Prompt]:
    """Of a JSONL file, whose rows have a prompt or messages; raises ConfigurationError naming the line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read ({error}): expected JSON lines in UTF-8.") from None
    prompts = [_read(f"{file}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not prompts:
        raise ConfigurationError(f'{file} has no prompts: expected a line {{"prompt": "..."}} for each.')
    return prompts


def token_ids(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    try:
        return render(tokenizer, prompt.messages).token_ids
    except PromptError as error:
        raise ConfigurationError(f"{prompt.place}: {error}") from None


def _read(place: str, line: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{place}: not JSON ({error}).") from None
    kind = str(cast(dict[str, Any], row).get("kind", "")) if isinstance(row, dict) else ""
    match row:
        case {"prompt": str(prompt)}:
            return Prompt(place, [Message(role="user", content=prompt)], kind)
        case {"messages": [*messages]} if messages:
            return Prompt(place, cast(list[Message], messages), kind)
        case _:
            raise ConfigurationError(f"{place}: expected an object with a prompt (a string) or messages.")
