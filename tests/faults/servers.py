"""A broker and a PostgreSQL that can be killed and come back at the same address."""

import signal
import socket
import sqlite3
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.servers import die_with_parent, postgres_command, valkey_command

PATIENCE = 30.0


class Server(ABC):
    def __init__(self, command: list[str], folder: Path, user: int | None = None) -> None:
        self._command = command
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process is not None

    @abstractmethod
    def answers(self) -> bool: ...

    def start(self) -> None:
        if self._process is not None:
            return
        with (self._folder / "servers.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._user,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        end = time.monotonic() + PATIENCE
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self._command[0]} did not start: see {self._folder}/servers.log")
            time.sleep(0.02)

    def end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Broker(Server):
    """A Valkey that keeps nothing: after a restart it is empty."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._socket = folder / "valkey.sock"
        self.url = f"redis+socket://{self._socket}" if port is None else f"redis://127.0.0.1:{port}/0"
        command = [*valkey_command(folder), "--port", str(port or 0), "--bind", "127.0.0.1"]
        super().__init__([*command, "--unixsocket", str(self._socket)], folder)
        self.client: Any = redis.Redis(unix_socket_path=str(self._socket), socket_timeout=5)

    def answers(self) -> bool:
        with suppress(redis.exceptions.ConnectionError):
            return bool(self.client.ping())
        return False

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def bells(self) -> int:
        """Waiting in any of a queue's lists (one for each priority)."""
        return sum(self.client.llen(key) for key in self.queues())

    def queues(self) -> list[bytes]:
        return list(self.client.scan_iter("*pair.*", _type="list"))


class Postgres(Server):
    """Commits are on the disk's cache when acknowledged: a killed server forgets nothing it confirmed."""

    def __init__(self, folder: Path) -> None:
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        command, user = postgres_command(folder)
        super().__init__(command, folder, user)

    def answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url).close()
            return True
        return False

    def stop(self, crash: bool) -> None:
        """As an administrator would, or as a power cut would: with recovery at the next start."""
        self.end(signal.SIGQUIT if crash else signal.SIGINT)


class HeldLock:
    """What "the database is away" means on SQLite: somebody else holds the write lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._conn: sqlite3.Connection | None = None

    def take(self) -> None:
        self._conn = sqlite3.connect(self._path, timeout=20, isolation_level=None)
        self._conn.execute("BEGIN IMMEDIATE")

    def give_back(self) -> None:
        if self._conn is not None:
            self._conn.execute("ROLLBACK")
            self._conn.close()
            self._conn = None


class Proxy:
    """Forwards TCP; `go_silent` forwards nothing more on the open connections and closes none of them."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._silent: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def go_silent(self) -> None:
        self._silent |= self._open

    def close(self) -> None:
        self._listener.close()
        for end in list(self._open):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                client.close()
                continue
            except OSError:
                return
            self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
        if source not in self._silent:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
