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
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
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

# Once for each chance in the draw.
WORKERS_DO = (*["claim"] * 5, "complete", "complete_and_die", "claim_suspect", "renew", "release")
TIME_DOES = ("wait", "wait", "outlive_the_leases", "reap", "reap")
PEOPLE_DO = ("submit", "submit", "seal", "pause", "resume", "overtake", "cancel", "retry")

ACTS = WORKERS_DO + TIME_DOES + PEOPLE_DO

holders = st.sampled_from(HOLDERS)
any_one = st.randoms(use_true_random=True)  # hypothesis's own choices are mostly the first, or none


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

    @initialize()
    def begin(self) -> None:
        self.add([1, 2, 1, 3], 1, due=False, sealed=True)

    @rule(act=st.sampled_from(ACTS), owner=holders, choose=any_one)
    def somebody_acts(self, act: str, owner: str, choose: Any) -> None:
        """One rule for all acts: of several, hypothesis leaves out most in each example."""
        getattr(self, act)(*([owner, choose] if act in WORKERS_DO else [choose]))

    # What workers do

    def claim(self, owner: str, choose: Any) -> None:
        limit = choose.randint(1, 6)
        claimable = self.claimable(suspects=False)
        with writing(self.db) as conn:
            claimed = queue.claim(conn, PAIR, owner, limit, LEASE)
        ids = [prompt.prompt_id for prompt in claimed]
        assert len(set(ids)) == len(ids) == min(limit, len(claimable))
        assert set(ids) <= claimable.keys()
        left = [batch.priority for prompt_id, batch in claimable.items() if prompt_id not in ids]
        assert all(claimable[prompt_id].priority >= max(left, default=0) for prompt_id in ids)
        self.take(owner, claimed)

    def claim_suspect(self, owner: str, choose: Any) -> None:  # noqa: ARG002 (all acts are called alike)
        claimable = self.claimable(suspects=True)
        with writing(self.db) as conn:
            claimed = queue.claim_suspect(conn, PAIR, owner, LEASE)
        assert (claimed is None) == (not claimable)
        if claimed is not None:
            assert claimed.prompt_id in claimable
            self.take(owner, [claimed])

    def renew(self, owner: str, choose: Any) -> None:
        leases = [claimed.lease for _, claimed in self.some(choose)]
        with writing(self.db) as conn:
            kept = queue.renew(conn, owner, leases, LEASE)
        assert kept == self.alive(leases, owner)

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

    def complete_and_die(self, owner: str, choose: Any) -> None:
        """Before the batch's end, which a reaper then owes it."""
        some = self.some(choose)
        with writing(self.db) as conn:
            queue.complete(conn, owner, [_success(claimed) for _, claimed in some], [])

    def release(self, owner: str, choose: Any) -> None:
        leases = [claimed.lease for _, claimed in self.some(choose)]
        alive = self.alive(leases, owner)
        with writing(self.db) as conn:
            assert queue.release(conn, owner, leases) == len(alive)

    # What passes and who looks after it

    def wait(self, choose: Any) -> None:
        self.move_on(choose.choice((11, 23, 41, 71)))

    def move_on(self, seconds: int) -> None:
        with writing(self.db) as conn:
            for table, names in (
                (Prompt, ("lease_until", "rung_at")),
                (Batch, ("deadline",)),
                (ReaperTick, ("ticked_at", "quiet_until")),
            ):
                for name in names:
                    _move_back(conn, table, name, timedelta(seconds=seconds))

    def outlive_the_leases(self, choose: Any) -> None:
        """With a reaper at work all the time: what is not renewed is taken back."""
        for _ in range(4):
            self.move_on(23)
            self.reap(choose)

    def reap(self, choose: Any = None) -> None:  # noqa: ARG002 (all acts are called alike)
        with reading(self.db) as conn:
            tick, time = conn.execute(select(ReaperTick)).one(), queue.now(conn)
        gap = time - tick.ticked_at > timedelta(seconds=LEASE / 2)
        quiet = gap or (tick.quiet_until is not None and tick.quiet_until > time)
        prompts, _ = self.look()
        overdue = [p for p in prompts.values() if p.status == "running" and p.lease_until < time]
        with writing(self.db) as conn:
            report = reap(conn, LEASE, CRASH_LIMIT)
        assert report.skipped == quiet
        assert report.expired_leases == (0 if quiet else len(overdue))
        after, batch_rows = self.look()
        assert all(after[prompt.id].crashes == prompt.crashes + (not quiet) for prompt in overdue)
        unended = {prompt.batch_id for prompt in after.values() if prompt.ended_at is None}
        for batch in batch_rows:  # a pass leaves none open that has ended
            assert batch.status not in OPEN_BATCH or batch.id in unended or batch.sealed_at is None

    # What people do

    def submit(self, choose: Any) -> None:
        sizes = [choose.randint(1, 3) for _ in range(choose.randint(0, 5))]
        self.add(sizes, choose.randint(0, 2), due=choose.random() < 0.3, sealed=choose.random() < 0.8)

    def add(self, sizes: list[int], priority: int, *, due: bool, sealed: bool) -> None:
        window = timedelta(seconds=WINDOW) if due else None
        with writing(self.db) as conn:
            batch_id = batches.create(conn, new_batch(priority=priority, completion_window=window))
            prompts = [new_prompt(f"p{number}", n=n) for number, n in enumerate(sizes)]
            batches.add_prompts(conn, batch_id, 0, prompts)
            if sealed:
                batches.seal(conn, batch_id, [], 0)
        self.batches.append(batch_id)
        self.ends[batch_id] = 1

    def seal(self, choose: Any) -> None:
        self.on_some_batch(choose, lambda conn, batch: batches.seal(conn, batch, [], 0))

    def pause(self, choose: Any) -> None:
        self.on_some_batch(choose, actions.pause)

    def resume(self, choose: Any) -> None:
        self.on_some_batch(choose, actions.resume)

    def overtake(self, choose: Any) -> None:
        priority = choose.randint(0, 2)
        self.on_some_batch(choose, lambda conn, batch: actions.set_priority(conn, batch, priority))

    def cancel(self, choose: Any) -> None:
        """Cut off before its prompts are cancelled, a reaper goes on with it."""
        batch = self.on_some_batch(choose, actions.cancel)
        if batch is not None and choose.random() < 0.5:
            with writing(self.db) as conn:
                actions.cancel_prompts(conn, batch)

    def retry(self, choose: Any) -> None:
        statuses = choose.sample(RETRYABLE, choose.randint(1, len(RETRYABLE)))
        batch = choose.choice(self.batches)
        names = [p.custom_id for p in self.prompts.values() if p.batch_id == batch]
        chosen = choose.sample(names, choose.randint(0, len(names))) if choose.random() < 0.5 else None
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
            self.move_on(23)
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
        """Leases, mostly of prompts that run, though not always by them. Of a prompt only one, as no worker
        completes one twice at once."""
        running = [pair for pair in self.held if self.prompts[pair[1].prompt_id].status == "running"]
        among = running if running and choose.random() < 0.8 else self.held
        chosen = choose.sample(among, min(choose.randint(1, 6), len(among)))
        return list({claimed.prompt_id: (owner, claimed) for owner, claimed in chosen}.values())

    def on_some_batch(self, choose: Any, act: Callable[[Any, str], object]) -> str | None:
        """Mostly one that is open."""
        are_open = [batch.id for batch in self.batch_rows if batch.status in OPEN_BATCH]
        among = are_open if are_open and choose.random() < 0.8 else self.batches
        return self.on_batch(choose.choice(among), act) if among else None

    def on_batch(self, batch: str, act: Callable[[Any, str], object]) -> str | None:
        try:
            with writing(self.db) as conn:
                act(conn, batch)
        except ActionRefused:
            return None
        return batch


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
    _run(database, examples=20, steps=50)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_great_many_interleavings_keep_the_invariant(database: Engine) -> None:
    _run(database, examples=300, steps=60)
