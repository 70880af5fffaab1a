"""`python -m tests.faults.fleet MODULE COUNT PAIR`: worker.fleet, less patient, on processes of a module."""

import sys

from worker import logs
from worker.devices import parse
from worker.fleet import Fleet, Patience, command_for

# Every death is by order here, and none of them says that starting again is in vain.
UNDETERRED = Patience(quick_seconds=0.0, first_pause=0.1)
GRACE = 3.0
CONCURRENCY = 4


def main() -> None:
    module, count, pair = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    logs.configure("fleet")
    start = command_for(pair, CONCURRENCY, GRACE)
    devices = parse(f"cpu:{count}")
    fleet = Fleet(
        devices,
        lambda device: [module if part == "worker.process" else part for part in start(device)],
        GRACE,
        UNDETERRED,
    )
    sys.exit(fleet.run())


if __name__ == "__main__":
    main()
