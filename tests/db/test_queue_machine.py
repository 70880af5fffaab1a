"""The queue under random interleavings: several holders, stale ones among them, people and reapers.

Time passes by moving what the database has noted into the past. The steps are sums of 11, 23, 41 and 71
seconds, which are never near the lease, half of it, or the deadline: how fast the test runs does not matter.
"""

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, bindparam, delete, select, update

from db import actions, batches, queue
from db.connect import reading, writing
from db.errors import ActionRefused
from db.queue import Claimed, Failed, Lease, Success
from db.reaping import POISON, reap
from db.retrying import RETRYABLE, retry
from db.tables import OPEN_BATCH, TERMINAL_PROMPT, Batch, Prompt, ReaperTick, Sample
from tests.db.given import PAIR, new_batch, new_prompt, sample, worker
from tests.faults import audit

LEASE = 60.5
WINDOW = 95.5
CRASH_LIMIT = 3
HOLDERS = ("worker-1", "worker-2", "worker-3")

holders = st.sampled_from(HOLDERS)
any_one = st.randoms(use_true_random=False)


class QueueMachine(RuleBasedStateMachine):
    """After every step: no prompt is lost, doubled or held by two, and each holder hears the truth."""

    def __init__(self, database: Engine) -> None:
        super().__init__()
        self.db = database
        self.held: list[tuple[str, Claimed]] = []  # every lease ever taken, most of them stale
        self.batches: list[str] = []
        self.ends: dict[str, int] = {}  # times each batch was open
        with writing(database) as conn:
            for table in (Sample, Prompt, Batch):
                conn.execute(delete(table))
            audit.forget(conn)
            conn.execute(update(ReaperTick).values(ticked_at=queue.now(conn), quiet_until=None))
        self.prompts, self.batch_rows = self.look()

    # What workers do

    @rule(owner=holders, limit=st.integers(1, 6))
    def claim(self, owner: str, limit: int) -> None:
        claimable = self.claimable(suspects=False)
        with writing(self.db) as conn:
            claimed = queue.claim(conn, PAIR, owner, limit, LEASE)
        ids = [prompt.prompt_id for prompt in claimed]
        assert len(set(ids)) == len(ids) == min(limit, len(claimable))
        assert set(ids) <= claimable.keys()
        left = [batch.priority for prompt_id, batch in claimable.items() if prompt_id not in ids]
        assert all(claimable[prompt_id].priority >= max(left, default=0) for prompt_id in ids)
        self.take(owner, claimed)

    @rule(owner=holders)
    def claim_suspect(self, owner: str) -> None:
        claimable = self.claimable(suspects=True)
        with writing(self.db) as conn:
            claimed = queue.claim_suspect(conn, PAIR, owner, LEASE)
        assert (claimed is None) == (not claimable)
        if claimed is not None:
            assert claimed.prompt_id in claimable
            self.take(owner, [claimed])

    @rule(owner=holders, choose=any_one)
    def renew(self, owner: str, choose: Any) -> None:
        leases = [claimed.lease for _, claimed in self.some(choose)]
        with writing(self.db) as conn:
            kept = queue.renew(conn, owner, leases, LEASE)
        assert kept == self.alive(leases, owner)

    @rule(owner=holders, choose=any_one)
    def complete(self, owner: str, choose: Any) -> None:
        """By whoever it may be: what a dead worker had spooled is handed in by another."""
        some = self.some(choose)
        alive = self.alive([claimed.lease for _, claimed in some])
        successes = [_success(claimed) for _, claimed in some if choose.random() < 0.7]
        ended = {success.lease for success in successes}
        failures = [
            Failed(claimed.lease, "not_finite", "no") for _, claimed in some if claimed.lease not in ended
        ]
        with writing(self.db) as conn:
            accepted = queue.complete(conn, owner, successes, failures)
        assert accepted == {lease.prompt_id for lease in alive}
        with writing(self.db) as conn:
            queue.finish_batches(conn)

    @rule(owner=holders, choose=any_one)
    def complete_and_die(self, owner: str, choose: Any) -> None:
        """Before the batch's end, which a reaper then owes it."""
        some = self.some(choose)
        with writing(self.db) as conn:
            queue.complete(conn, owner, [_success(claimed) for _, claimed in some], [])

    @rule(owner=holders, choose=any_one)
    def release(self, owner: str, choose: Any) -> None:
        leases = [claimed.lease for _, claimed in self.some(choose)]
        alive = self.alive(leases, owner)
        with writing(self.db) as conn:
            assert queue.release(conn, owner, leases) == len(alive)

    # What passes and who looks after it

    @rule(seconds=st.sampled_from((11, 23, 41, 71)))
    def wait(self, seconds: int) -> None:
        with writing(self.db) as conn:
            for table, names in (
                (Prompt, ("lease_until", "rung_at")),
                (Batch, ("deadline",)),
                (ReaperTick, ("ticked_at", "quiet_until")),
            ):
                for name in names:
                    _move_back(conn, table, name, timedelta(seconds=seconds))

    @rule()
    def reap(self) -> None:
        with reading(self.db) as conn:
            tick, time = conn.execute(select(ReaperTick)).one(), queue.now(conn)
        gap = time - tick.ticked_at > timedelta(seconds=LEASE / 2)
        quiet = gap or (tick.quiet_until is not None and tick.quiet_until > time)
        overdue = [p for p in self.prompts.values() if p.status == "running" and p.lease_until < time]
        with writing(self.db) as conn:
            report = reap(conn, LEASE, CRASH_LIMIT)
        assert report.skipped == quiet
        assert report.expired_leases == (0 if quiet else len(overdue))
        self.assert_ended_batches_are_over()

    # What people do

    @rule(
        sizes=st.lists(st.integers(1, 3), min_size=0, max_size=5),
        priority=st.integers(0, 2),
        due=st.booleans(),
        sealed=st.booleans(),
    )
    def submit(self, sizes: list[int], priority: int, due: bool, sealed: bool) -> None:
        window = timedelta(seconds=WINDOW) if due else None
        with writing(self.db) as conn:
            batch_id = batches.create(conn, new_batch(priority=priority, completion_window=window))
            prompts = [new_prompt(f"p{number}", n=n) for number, n in enumerate(sizes)]
            batches.add_prompts(conn, batch_id, 0, prompts)
            if sealed:
                batches.seal(conn, batch_id, [], 0)
        self.batches.append(batch_id)
        self.ends[batch_id] = 1

    @rule(choose=any_one)
    def seal(self, choose: Any) -> None:
        self.on_some_batch(choose, lambda conn, batch: batches.seal(conn, batch, [], 0))

    @rule(choose=any_one)
    def pause(self, choose: Any) -> None:
        self.on_some_batch(choose, actions.pause)

    @rule(choose=any_one)
    def resume(self, choose: Any) -> None:
        self.on_some_batch(choose, actions.resume)

    @rule(choose=any_one, priority=st.integers(0, 2))
    def overtake(self, choose: Any, priority: int) -> None:
        self.on_some_batch(choose, lambda conn, batch: actions.set_priority(conn, batch, priority))

    @rule(choose=any_one, at_once=st.booleans())
    def cancel(self, choose: Any, at_once: bool) -> None:
        """Cut off before its prompts are cancelled, a reaper goes on with it."""
        batch = self.on_some_batch(choose, actions.cancel)
        if batch is not None and at_once:
            with writing(self.db) as conn:
                actions.cancel_prompts(conn, batch)

    @rule(choose=any_one, by_name=st.booleans())
    def retry(self, choose: Any, by_name: bool) -> None:
        statuses = choose.sample(RETRYABLE, choose.randint(1, len(RETRYABLE)))
        batch = choose.choice(self.batches or [None])
        if batch is None:
            return
        names = [p.custom_id for p in self.prompts.values() if p.batch_id == batch]
        chosen = choose.sample(names, choose.randint(0, len(names))) if by_name else None
        try:
            with writing(self.db) as conn:
                retried = retry(conn, batch, statuses, chosen)
        except ActionRefused:
            return
        self.ends[batch] += retried.reopened

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        prompts, batch_rows = self.look()
        assert self.prompts.keys() <= prompts.keys()
        for prompt in prompts.values():
            before = self.prompts.get(prompt.id)
            assert before is None or prompt.attempt >= before.attempt
            _assert_whole(prompt)
        unended = {prompt.batch_id for prompt in prompts.values() if prompt.ended_at is None}
        for batch in batch_rows:
            is_open = batch.status in OPEN_BATCH
            assert is_open or (batch.id not in unended and batch.sealed_at is not None)
            assert len(batch.ends) == self.ends[batch.id] - is_open, "once, each time it was open"
        self.prompts, self.batch_rows = prompts, batch_rows

    def teardown(self) -> None:
        """Whatever happened: sealed and resumed, with one worker left, everything ends."""
        for batch in self.batches:
            for act in (lambda conn, one: batches.seal(conn, one, [], 0), actions.resume):
                self.on_batch(batch, act)
        for _ in range(100):
            if all(prompt.ended_at is not None for prompt in self.look()[0].values()):
                break
            self.wait(23)
            with writing(self.db) as conn:
                claimed = queue.claim(conn, PAIR, HOLDERS[0], 4, LEASE)
                suspect = queue.claim_suspect(conn, PAIR, HOLDERS[0], LEASE)
                claimed += [suspect] if suspect is not None else []
                queue.complete(conn, HOLDERS[0], [_success(prompt) for prompt in claimed], [])
            self.reap()
            self.all_is_well()
        self.reap()
        self.all_is_well()
        assert not {batch.status for batch in self.batch_rows} & {*OPEN_BATCH}

    # The truth, as the database tells it

    def look(self) -> tuple[dict[int, Any], list[Any]]:
        with reading(self.db) as conn:
            rows = conn.execute(select(Prompt)).all()
            samples = conn.execute(select(Sample.prompt_id, Sample.sample_index, Sample.attempt)).all()
            batch_rows = conn.execute(select(Batch)).all()
            assert audit.illegal_moves(conn) == []
            ends = audit.ends(conn)
        of: dict[int, list[Any]] = defaultdict(list)
        for prompt_id, *which in samples:
            of[prompt_id].append(tuple(which))
        prompts = {row.id: _Seen(row, samples=of[row.id]) for row in rows}
        return prompts, [_Seen(row, ends=[e for e in ends if e.batch_id == row.id]) for row in batch_rows]

    def claimable(self, suspects: bool) -> dict[int, Any]:
        """The batches of prompts that may be claimed."""
        with reading(self.db) as conn:
            time = queue.now(conn)
        serving = {
            batch.id: batch
            for batch in self.batch_rows
            if batch.status == "in_progress"
            and batch.paused_at is None
            and (batch.deadline is None or batch.deadline > time)
        }
        return {
            prompt.id: serving[prompt.batch_id]
            for prompt in self.prompts.values()
            if prompt.status == "pending"
            and prompt.batch_id in serving
            and (prompt.crashes >= queue.SUSPECTED_AT) == suspects
        }

    def alive(self, leases: list[Lease], owner: str | None = None) -> set[Lease]:
        return {
            lease
            for lease in leases
            if (prompt := self.prompts[lease.prompt_id]).status == "running"
            and prompt.attempt == lease.attempt
            and owner in (None, prompt.owner)
        }

    def take(self, owner: str, claimed: list[Claimed]) -> None:
        now, _ = self.look()
        for prompt in claimed:
            row = now[prompt.prompt_id]
            assert (row.owner, row.attempt) == (owner, prompt.attempt)
            assert prompt.attempt == self.prompts[prompt.prompt_id].attempt + 1
        self.held += [(owner, prompt) for prompt in claimed]

    def some(self, choose: Any) -> list[tuple[str, Claimed]]:
        """Leases, the newest more often: of a prompt only one, as no worker completes one twice at once."""
        count = choose.randint(0, min(6, len(self.held)))
        chosen = self.held[-count:] if choose.random() < 0.7 else choose.sample(self.held, count)
        return list({claimed.prompt_id: (owner, claimed) for owner, claimed in chosen[:count]}.values())

    def on_some_batch(self, choose: Any, act: Callable[[Any, str], object]) -> str | None:
        return self.on_batch(choose.choice(self.batches), act) if self.batches else None

    def on_batch(self, batch: str, act: Callable[[Any, str], object]) -> str | None:
        try:
            with writing(self.db) as conn:
                act(conn, batch)
        except ActionRefused:
            return None
        return batch

    def assert_ended_batches_are_over(self) -> None:
        """A pass leaves no sealed batch open whose prompts have all ended."""
        prompts, batch_rows = self.look()
        unended = {prompt.batch_id for prompt in prompts.values() if prompt.ended_at is None}
        for batch in batch_rows:
            assert batch.status not in OPEN_BATCH or batch.id in unended or batch.sealed_at is None


class _Seen:
    """A row, and what other tables have about it."""

    def __init__(self, row: Any, **more: list[Any]) -> None:
        self._row = row
        self.__dict__.update(more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)


def _assert_whole(prompt: Any) -> None:
    running = prompt.status == "running"
    assert (prompt.owner is not None) == (prompt.lease_until is not None) == running
    assert (prompt.ended_at is not None) == (prompt.status in TERMINAL_PROMPT)
    wanted = [(index, prompt.attempt) for index in range(prompt.n)] if prompt.status == "succeeded" else []
    assert sorted(prompt.samples) == wanted
    assert (prompt.error_code is not None) == (prompt.status == "failed")
    assert (prompt.crashes >= CRASH_LIMIT) == (prompt.error_code == POISON)


def _success(claimed: Claimed) -> Success:
    return Success(claimed.lease, "Say it.", [sample(sample_index=index) for index in range(claimed.n)])


def _move_back(conn: Any, table: Any, name: str, by: timedelta) -> None:
    column = getattr(table, name)
    rows = conn.execute(select(table.id, column).where(column.is_not(None))).all()
    if rows:
        conn.execute(
            update(table.__table__)
            .where(table.__table__.c.id == bindparam("row"))
            .values({name: bindparam("time", type_=column.type)}),
            [{"row": key, "time": time - by} for key, time in rows],
        )


def _run(database: Engine, examples: int, steps: int) -> None:
    with writing(database) as conn:
        audit.install(conn)
    for name in HOLDERS:
        worker(database, name)
    run_state_machine_as_test(
        lambda: QueueMachine(database),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_interleavings_keep_the_invariant(database: Engine) -> None:
    _run(database, examples=25, steps=30)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_great_many_interleavings_keep_the_invariant(database: Engine) -> None:
    _run(database, examples=1500, steps=60)
