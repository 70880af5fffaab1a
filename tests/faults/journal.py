"""Bells published and heard, by message id: appended to a file, which survives kill -9 of its writer."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery.signals import after_task_publish, task_prerun

NAME = "bells"


def install(folder: Path) -> Callable[[], None]:
    """From now on this process writes down what it publishes and hears; until what is returned is called."""
    descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def published(headers: dict[str, Any], **_: Any) -> None:
        os.write(descriptor, f"p {headers['id']}\n".encode())

    def heard(task_id: str, **_: Any) -> None:
        os.write(descriptor, f"h {task_id}\n".encode())

    after_task_publish.connect(published, weak=False)
    task_prerun.connect(heard, weak=False)

    def uninstall() -> None:
        after_task_publish.disconnect(published)
        task_prerun.disconnect(heard)
        os.close(descriptor)

    return uninstall


@dataclass(frozen=True)
class Bells:
    published: int
    repeated: int  # heard more than once, counted by the further times
    lost: int  # published and never heard, whoever took them


def read(folder: Path) -> Bells:
    path = folder / NAME
    lines = path.read_text().splitlines() if path.exists() else []
    published = {line[2:] for line in lines if line.startswith("p ")}
    heard = Counter(line[2:] for line in lines if line.startswith("h "))
    return Bells(len(published), sum(heard.values()) - len(heard), len(published - heard.keys()))
