"""What has ended here and is not in the database yet: written in groups, spooled while it is away."""

import logging
from collections.abc import Container, Sequence

from sqlalchemy.exc import OperationalError

from db.queue import Lease
from worker.claims import Running
from worker.ledger import Ledger
from worker.spool import Result, Spool

log = logging.getLogger("specmill.worker")

GROUP = 64  # prompts written in one transaction, at most


class Outcomes:
    """Prompts that succeeded or failed, and those that go back to pending."""

    def __init__(self, ledger: Ledger, spool: Spool) -> None:
        self._ledger = ledger
        self._spool = spool
        self._ended: list[Running] = []
        self._returned: list[Running] = []
        self._spooled: set[Lease] = set()
        self._others_handed_in = False  # what dead processes of this host had spooled

    @property
    def held(self) -> list[Running]:
        return [*self._ended, *self._returned]

    @property
    def all_written(self) -> bool:
        """Nothing waits, of this process or of those before it: only then is more work claimed."""
        return not self._ended and not self._returned and self._others_handed_in

    def end(self, running: Running) -> None:
        self._ended.append(running)

    def give_back(self, running: Running) -> None:
        self._returned.append(running)

    def drop(self, leases: Container[Lease]) -> None:
        """These leases are over: what they led to must not be written."""
        dropped = [running.lease for running in self.held if running.lease in leases]
        self._ended = [running for running in self._ended if running.lease not in leases]
        self._returned = [running for running in self._returned if running.lease not in leases]
        self._forget(dropped)

    def write(self) -> list[Running]:
        """The prompts that were written, or whose lease had been lost: they are over for this process."""
        over: list[Running] = []
        while self._ended or self._returned:
            group, returned = self._ended[:GROUP], self._returned[:GROUP]
            accepted = self._ledger.complete(
                [running.success() for running in group if running.failure is None],
                [running.failed() for running in group if running.failure is not None],
                [running.lease for running in returned],
            )
            if accepted is None:
                self._keep()
                return over
            del self._ended[: len(group)], self._returned[: len(returned)]
            for running in group:
                if running.claimed.prompt_id not in accepted:
                    log.info(
                        "prompt %s: its lease was lost, the output is dropped", running.claimed.custom_id
                    )
            self._forget([running.lease for running in group])
            over += [*group, *returned]
        self._hand_in_others()
        return over

    def say_what_is_left(self) -> None:
        """The process ends without its database."""
        log.error(
            "the database is away: %d finished prompts wait in %s for the next worker on this host, "
            "%d are lost and run again elsewhere",
            len(self._spooled),
            self._spool.folder,
            len(self._ended) - len(self._spooled),
        )

    def _keep(self) -> None:
        """The database is away. It may stay so until this process ends, and others may die meanwhile."""
        self._others_handed_in = False
        new = [running for running in self._ended if running.lease not in self._spooled]
        results = [
            Result(
                running.claimed.batch_id,
                running.success() if running.failure is None else running.failed(),
            )
            for running in new
        ]
        if results and self._spool.keep(results):
            self._spooled |= {running.lease for running in new}

    def _forget(self, leases: Sequence[Lease]) -> None:
        self._spool.forget(self._spooled.intersection(leases))
        self._spooled.difference_update(leases)

    def _hand_in_others(self) -> None:
        if self._others_handed_in:
            return
        for path in self._spool.files():
            result = self._spool.read(path)
            if result is None:
                continue
            try:
                accepted = self._ledger.hand_in(result)
            except OperationalError:
                raise  # the database's trouble, not the file's
            except Exception as error:  # whatever it was, starting again would meet it again
                self._spool.set_aside(path, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                continue
            if accepted is None:
                return
            log.info(
                "the spooled result of prompt %s (%s) was %s",
                result.outcome.lease.prompt_id,
                result.batch_id,
                "stored" if accepted else "dropped, its lease had been lost",
            )
            self._spool.forget([result.outcome.lease])
        self._others_handed_in = True
