"""Which files of the given paths are read, in which order, and under which name."""

import fnmatch
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from producer.inputs.item import BadItem

PROMPT_SUFFIXES = (".txt", ".md", ".prompt")
ROW_SUFFIXES = (".jsonl", ".json", ".csv")
LATER_SUFFIXES = (".parquet",)
KNOWN_SUFFIXES = (*PROMPT_SUFFIXES, *ROW_SUFFIXES, *LATER_SUFFIXES)
EXPECTED = "expected " + ", ".join("*" + suffix for suffix in (*PROMPT_SUFFIXES, *ROW_SUFFIXES))


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path
    name: str  # what custom_ids are made of: relative to the folder that was given


@dataclass(slots=True)
class Skipped:
    """Files left out without being bad: counted, never silent."""

    hidden: int = 0
    excluded: int = 0
    folder_links: int = 0
    other_kinds: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class FileFinder:
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    skipped: Skipped = field(default_factory=Skipped)

    def find(self, paths: Sequence[Path]) -> Iterator[SourceFile | BadItem]:
        """Folders in sorted order, recursively. Of several paths each name begins with its path as given."""
        for path in paths:
            prefix = os.path.normpath(path) if len(paths) > 1 else ""
            if path.is_dir():
                root = path.resolve()
                yield from self._walk(path, root, prefix + "/" if prefix and prefix != "." else "")
            else:
                yield from self._accept(path, prefix or path.name, named=True)

    def _walk(self, folder: Path, root: Path, prefix: str) -> Iterator[SourceFile | BadItem]:
        try:
            with os.scandir(folder) as scanned:
                # A folder sorts as its name and a slash: the whole walk is in order of relative paths.
                entries = sorted(
                    scanned, key=lambda e: e.name + "/" if e.is_dir(follow_symlinks=False) else e.name
                )
        except OSError as error:
            yield BadItem(str(folder), None, f"folder cannot be read: {error.strerror}")
            return
        for entry in entries:
            path = Path(entry.path)
            name = prefix + entry.name
            if entry.name.startswith("."):
                self.skipped.hidden += 1
            elif entry.is_dir(follow_symlinks=False):
                yield from self._walk(path, root, name + "/")
            elif entry.is_symlink() and (problem := _link_problem(path, root)):
                yield BadItem(str(path), None, problem)
            elif entry.is_symlink() and path.is_dir():
                self.skipped.folder_links += 1  # what it shows is read where it lives
            else:
                yield from self._accept(path, name, named=False)

    def _accept(self, path: Path, name: str, *, named: bool) -> Iterator[SourceFile | BadItem]:
        suffix = path.suffix.lower()
        if not self._wanted(name):
            self.skipped.excluded += 1
        elif suffix not in KNOWN_SUFFIXES:
            if named:
                yield BadItem(str(path), None, f"unknown kind of file; {EXPECTED}")
            else:
                self.skipped.other_kinds[suffix or "no suffix"] += 1
        elif suffix in LATER_SUFFIXES:
            yield BadItem(str(path), None, "Parquet is read by a later release; convert it to .jsonl or .csv")
        else:
            problem = _file_problem(path, name)
            yield BadItem(_printable(str(path)), None, problem) if problem else SourceFile(path, name)

    def _wanted(self, name: str) -> bool:
        if self.include and not any(fnmatch.fnmatch(name, glob) for glob in self.include):
            return False
        return not any(fnmatch.fnmatch(name, glob) for glob in self.exclude)


def _link_problem(path: Path, root: Path) -> str | None:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return "symlink to nothing; remove it or restore its target"
    if not target.is_relative_to(root):
        return f"symlink leaves the folder (to {target}); copy the file in, or submit its folder too"
    return None


def _file_problem(path: Path, name: str) -> str | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the file's name is not UTF-8; rename it"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    # A pipe named like a prompt would be waited on for ever.
    return None if stat.S_ISREG(mode) else "not a regular file"


def _printable(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="replace")
