"""Compiles the kernels with the machine's own compiler, once, into the cache folder.

Nothing of torch is included or linked: the OpenMP functions stay undefined, and are found in the library that
torch has loaded. A second OpenMP would bring a second set of threads.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from filelock import FileLock

from worker.engine.conversion import cache_folder

_log = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fPIC", "-fopenmp", "-shared")
_SECONDS = 300


@cache
def compiled_library() -> ctypes.CDLL | None:
    """The kernels, or None (said once, in the log) where they cannot be had: all goes on in torch's own."""
    try:
        return ctypes.CDLL(str(_compiled_file()))
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning(
            "running without compiled CPU kernels, which is slower: %s. "
            "Install g++ (or set CXX to one) to have them compiled at the next start",
            _reason(error),
        )
        return None


def _compiled_file() -> Path:
    compiler = _compiler()
    sources = sorted(_SOURCES.iterdir())
    digest = hashlib.sha256("\0".join((*_FLAGS, compiler, _cpu())).encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = cache_folder()
    library = folder / f"kernels-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{library}.lock"):
        if not library.exists():
            partial = library.with_suffix(".partial")
            _compile(compiler, [source for source in sources if source.suffix == ".cpp"], partial)
            partial.rename(library)
    return library


def _compile(compiler: str, sources: list[Path], output: Path) -> None:
    _log.info("compiling the CPU kernels, once, into %s", output.parent)
    # The driver would link its own OpenMP: -fopenmp is for the compiler alone.
    flags = [flag for flag in _FLAGS if flag != "-shared"]
    objects = [output.with_name(f"{output.stem}-{source.stem}.o") for source in sources]
    commands = [
        (compiler, *flags, "-c", str(source), "-o", str(file))
        for source, file in zip(sources, objects, strict=True)
    ]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        _run((compiler, "-shared", *map(str, objects), "-o", str(output)))
    finally:
        for file in objects:
            file.unlink(missing_ok=True)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)


def _compiler() -> str:
    wanted = os.environ.get("CXX", "g++")
    if platform.system() != "Linux":
        raise FileNotFoundError(f"they are made for Linux, and this is {platform.system()}")
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(f"there is no C++ compiler named {wanted}")
    return found


def _cpu() -> str:
    """What this CPU can do: a cache folder may be shared by different machines."""
    with Path("/proc/cpuinfo").open() as file:
        flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return platform.machine() + flags


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return next((line for line in lines if "error" in line), lines[0] if lines else str(error))
    return str(error)
