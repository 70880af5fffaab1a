"""A short selection of the fault campaign (`make test-faults`): two seeded rounds on each database."""

import random
from collections.abc import Callable

import pytest

from tests.faults import injections, rounds, table
from tests.faults.injections import Fault
from tests.faults.site import Site, run_site

PLANS: tuple[tuple[Callable[[Site, random.Random], Fault], ...], ...] = (
    (injections.kill_worker, injections.kill_broker),
    (injections.take_database_away, injections.freeze_worker),
)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_comes_twice(database: str) -> None:
    with run_site(database, answer=table.answer) as site:
        for number, plan in enumerate(PLANS):
            outcome = rounds.run(site, f"{database}-selection-{number}", plan)
            assert not outcome.breaches, f"{outcome}\n{site.log.read_text()}"
