"""Two streams: what a machine reads goes to standard output, everything else to standard error."""

import json
from typing import Any

import click


def say(message: str) -> None:
    """Tell the person."""
    click.echo(message, err=True)


def warn(message: str) -> None:
    say(f"warning: {message}")


def emit(text: str) -> None:
    """The command's result."""
    click.echo(text)


def emit_json(value: Any) -> None:
    emit(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
