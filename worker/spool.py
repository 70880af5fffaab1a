"""Finished results on the local disk while the database is away: one file a prompt and attempt.

They outlive the process. Whoever starts next on this host hands them in through the same fenced write.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.queue import Failed, Lease, Success

log = logging.getLogger("specmill.worker")

FORMAT = 1  # of the files; those of another are left alone
SUFFIX = ".json"


@dataclass(frozen=True)
class Result:
    """What became of a prompt. The batch tells a prompt from that of another database at the same place."""

    batch_id: str
    outcome: Success | Failed


class Spool:
    """The folder of one database."""

    def __init__(self, state_dir: Path, database: str) -> None:
        """`database`: its URL without the password, which may change."""
        self.folder = state_dir / "spool" / hashlib.sha256(database.encode()).hexdigest()[:16]
        self._is_full = False

    def keep(self, results: Sequence[Result]) -> bool:
        """Durably on disk when it returns; False, and said once, if the disk takes no more."""
        try:
            # Answers are as private as the database is: nobody else reads them here.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for result in results:
                self._write(result)
            _sync_folder(self.folder)
        except OSError as error:
            if not self._is_full:
                log.error(
                    "results cannot be kept in %s (%s): they are held in memory, lost if this process dies",
                    self.folder,
                    error.strerror,
                )
            self._is_full = True
            return False
        self._is_full = False
        return True

    def forget(self, leases: Iterable[Lease]) -> None:
        """Their results are in the database, or nobody wants them any more."""
        with suppress(OSError):  # what stays is handed in again, and refused
            for lease in leases:
                self._path(lease).unlink(missing_ok=True)

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*" + SUFFIX)) if self.folder.is_dir() else []

    def read(self, path: Path) -> Result | None:
        """None if it is gone by now, or no result that this version wrote; the latter is set aside."""
        try:
            return _result(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.set_aside(path, f"{type(error).__name__}: {error}")
            return None

    def set_aside(self, path: Path, why: str) -> None:
        """A file that cannot be handed in must not be tried for ever, nor silently vanish."""
        log.error("the spooled result %s cannot be handed in (%s) and is set aside", path, why)
        with suppress(OSError):
            path.replace(path.with_suffix(".rejected"))

    def _write(self, result: Result) -> None:
        path = self._path(result.outcome.lease)
        draft = path.with_suffix(".draft")
        with draft.open("w", encoding="ascii") as file:
            json.dump(_document(result), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)  # whole or not at all

    def _path(self, lease: Lease) -> Path:
        return self.folder / f"{lease.prompt_id}-{lease.attempt}{SUFFIX}"


def _sync_folder(folder: Path) -> None:
    """A file's name is durable only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _document(result: Result) -> dict[str, Any]:
    lease = result.outcome.lease
    names = {
        "format": FORMAT,
        "batch": result.batch_id,
        "prompt": lease.prompt_id,
        "attempt": lease.attempt,
    }
    match result.outcome:
        case Success(_, rendered, samples):
            return names | {"rendered": rendered, "samples": list(samples)}
        case Failed(_, code, message):
            return names | {"code": code, "message": message}


def _result(document: dict[str, Any]) -> Result:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}, not {FORMAT}")
    lease = Lease(document["prompt"], document["attempt"])
    if "code" in document:
        return Result(document["batch"], Failed(lease, document["code"], document["message"]))
    return Result(document["batch"], Success(lease, document["rendered"], document["samples"]))
