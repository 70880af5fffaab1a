"""Orders to running worker processes: files in the site's folder, each obeyed by one process, once."""

import os
from pathlib import Path

FOLDER_VARIABLE = "SPECMILL_FAULTS_FOLDER"

OUT_OF_MEMORY = "out-of-memory"  # the next step that has rows fails for want of memory
REAPER_DIES = "reaper-dies"  # the reaper's thread ends, without a word


def folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def pull(where: Path, name: str, times: int = 1) -> None:
    for number in range(times):
        (where / f"trigger-{name}-{number}").touch()


def was_pulled(name: str) -> bool:
    """Removing the file is the atomic step: of several processes one obeys."""
    for path in folder().glob(f"trigger-{name}-*"):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        return True
    return False


def forget(where: Path) -> int:
    """Orders that nobody obeyed are withdrawn; how many."""
    left = list(where.glob("trigger-*"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
