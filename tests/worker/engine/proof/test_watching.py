"""The proof beside an engine: it finds the speed-up there is, and changes nothing."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.worker.engine.running import GREEDY, SEEDED, Oracle, generations, make_pair, make_requests, outputs
from tests.worker.engine.tiny import Kind
from worker.engine import Engine, Sampling
from worker.engine.proof import Proof
from worker.engine.types import Method

Folders = Callable[[Kind], Path]


class Talker:
    """A row that only talks."""

    def __init__(self) -> None:
        self.group = "batch"
        self.tokens: list[int] = [0]  # its prompt


def test_the_speedup_of_a_clockwork_is_found_exactly() -> None:
    """Plain steps give 1 token a row in 1 s, speculative ones 3 in 2 s."""
    time = [0.0]
    proof = Proof(0.1, 20, Random(0), clock=lambda: time[0])
    rows = [Talker(), Talker()]
    for _ in range(1000):
        plain = proof.is_plain
        with proof.watch(rows):
            for row in rows:
                row.tokens += [7] * (1 if plain else 3)
            time[0] += 1.0 if plain else 2.0
    proof.rest()
    made = proof.take()
    assert [comparison.block for comparison in made] == [1, 2, 3, 4, 5]
    assert {(c.rows_in_flight, c.groups) for c in made} == {(2, frozenset({"batch"}))}
    assert {c.speculative.tokens / c.speculative.seconds for c in made} == {3.0}
    assert {c.plain.tokens / c.plain.seconds for c in made} == {2.0}
    assert proof.take() == [], "each is told once"


def test_without_a_share_no_step_is_plain_and_nothing_is_measured() -> None:
    proof = Proof(0.0)
    for _ in range(1000):
        assert not proof.is_plain
        with proof.watch([Talker()]):
            pass
    proof.rest()
    assert proof.take() == []


def test_while_speculation_is_off_for_all_there_is_nothing_to_compare() -> None:
    proof = Proof(0.5, 10, Random(0))
    for _ in range(100):
        with proof.watch([Talker()], speculation=False):
            pass
    proof.rest()
    assert proof.take() == []


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_plain_blocks_within_a_job_change_nothing_but_the_plan(
    sampling: Sampling, target_folder: Folders
) -> None:
    requests = make_requests(24, sampling)
    expected = generations(Engine(make_pair(target_folder("llama"))), requests)
    oracle = Oracle({key: g.token_ids for key, g in expected.items()}, [1, 4, 0])
    pair = make_pair(target_folder("llama"), "prompt_lookup")
    engine = Engine(pair, oracle, proof=Proof(0.5, 10, Random(0)))
    assert outputs(generations(engine, requests)) == outputs(expected)
    made = engine.take_comparisons()
    assert made
    for comparison in made:
        steps, rows = comparison.plain.steps, comparison.rows_in_flight
        assert comparison.plain.tokens <= steps * rows, "a plain step gives a token a row, prompts none"
        assert comparison.groups == {None}


def test_a_pair_proves_its_drafter_by_its_share_and_one_without_proves_nothing(
    target_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine.engine.Proof", partial(Proof, block=10, random=Random(0)))
    requests = make_requests(24, GREEDY)
    cases: list[tuple[Method, float, bool]] = [
        ("prompt_lookup", 0.5, True), ("prompt_lookup", 0.0, False), ("none", 0.5, False)
    ]  # fmt: skip
    for method, share, proves in cases:
        engine = Engine(make_pair(target_folder("llama"), method, baseline_share=share))
        generations(engine, requests)
        assert bool(engine.take_comparisons()) is proves
