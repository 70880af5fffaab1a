"""The embedded stack, with the real broker and real worker processes."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer import local
from producer.embedded_broker import ping, socket_path
from producer.errors import ProducerError
from producer.local import LocalStack
from tests.producer.test_local_process import until
from worker.wire.pairs import fingerprint
from worker.wire.pairs import get_pair as declared


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "with a space"
    path.mkdir()
    yield path
    stack = LocalStack(path)
    stack._stop_at_once()


def attached(state: Path, pair: str = "smollm2") -> LocalStack:
    """The stack on a database that the worker finds without tables: it starts, and gives up by itself."""
    stack = LocalStack(state)
    known = fingerprint(declared("smollm2"))
    stack.attach(pair, known, f"sqlite:///{state / 'specmill.db'}")
    return stack


def check_for_ever(stack: LocalStack) -> None:
    while True:
        stack.check()
        time.sleep(0.1)


def broker_socket(stack: LocalStack) -> str:
    return stack.broker_url.removeprefix("redis+socket://")


def test_the_broker_listens_on_a_private_socket_only(state: Path) -> None:
    stack = attached(state)
    socket = broker_socket(stack)
    assert ping(socket)
    assert Path(socket).stat().st_mode & 0o077 == 0
    assert "Ready to accept connections unix" in (state / "local" / "broker.log").read_text()
    assert "tcp" not in (state / "local" / "broker.log").read_text()
    assert stack.detach()
    assert not ping(socket)


def test_a_second_user_attaches_and_the_last_one_out_stops_what_was_started(state: Path) -> None:
    first = attached(state)
    pid = first._broker.facts()["pid"]
    second = attached(state)
    assert second._broker.facts()["pid"] == pid
    assert not first.detach()
    assert ping(broker_socket(second))
    socket = broker_socket(second)
    assert second.detach()
    assert not ping(socket)
    assert not list((state / "local").glob("worker-*"))


def test_what_kill_9_left_behind_is_replaced(state: Path) -> None:
    stack = attached(state)
    pid = stack._broker.facts()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not stack._broker.is_running())
    assert Path(broker_socket(stack)).exists()

    again = attached(state)

    assert again._broker.facts()["pid"] != pid
    assert ping(broker_socket(again))
    stack.forget()
    assert again.detach()


def test_a_worker_that_cannot_work_ends_the_wait_with_its_own_words(state: Path) -> None:
    stack = attached(state)
    with pytest.raises(ProducerError, match=r"the local worker ended: .*producer db upgrade.*worker\.log"):
        check_for_ever(stack)
    stack.detach()


def test_a_broker_that_dies_is_noticed(state: Path) -> None:
    stack = attached(state)
    os.kill(stack._broker.facts()["pid"], signal.SIGKILL)
    until(lambda: not stack._broker.is_running())
    with pytest.raises(ProducerError, match="ended"):
        stack.check()
    stack.detach()


def test_a_long_state_folder_gets_a_short_private_socket(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100) / "local"
    path = socket_path(long)
    assert len(os.fsencode(path)) <= 100
    assert path.parent.stat().st_mode & 0o077 == 0
    path.parent.rmdir()


def test_without_the_workers_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ProducerError, match=r"pip install 'specmill\[worker\]'"):
        local.require_worker_extra()
