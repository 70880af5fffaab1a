"""`python -m tests.worker.table_cli`: the worker command, on an engine that answers from a table."""

from collections.abc import Callable, Sequence
from typing import Any

from worker import cli, fleet
from worker.devices import Device

MODULE = "tests.faults.table_worker"

command_for = fleet.command_for


def table_command_for(*settings: Any) -> Callable[[Device], Sequence[str]]:
    command = command_for(*settings)
    return lambda device: [MODULE if part == "worker.process" else part for part in command(device)]


if __name__ == "__main__":
    fleet.command_for = table_command_for
    cli.main()
