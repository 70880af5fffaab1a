"""What a block of plain steps and its neighbours say."""

from collections.abc import Hashable, Iterable
from itertools import chain, repeat

from worker.engine.proof.comparing import Arm, Comparer, Comparison, Step

BLOCK = 40  # so 2 steps settle after a switch, and 4 of a kind are enough


def steps(count: int, tokens: int = 4, *, rows: int = 4, of: Iterable[Hashable] = "a") -> list[Step]:
    return [Step(frozenset(of), rows, tokens, 0.5)] * count


def told(*runs: tuple[list[Step], bool], conclude: bool = False) -> list[Comparison]:
    """What a comparer says of runs of steps, each plain or not."""
    comparer = Comparer(BLOCK)
    noted = chain.from_iterable(zip(run, repeat(plain), strict=False) for run, plain in runs)
    made = [comparison for step, plain in noted for comparison in comparer.note(step, plain=plain)]
    return made + comparer.conclude() if conclude else made


def test_a_block_is_compared_with_as_many_steps_before_it_and_after_it() -> None:
    before, plain, after = steps(100, 9), steps(BLOCK), steps(BLOCK + 2, 7)
    (comparison,) = told((before, False), (plain, True), (after, False))
    assert comparison == Comparison(
        block=1,
        groups=frozenset("a"),
        rows_in_flight=4,
        plain=Arm(BLOCK - 2, 4 * (BLOCK - 2), 0.5 * (BLOCK - 2)),
        speculative=Arm(2 * BLOCK, 9 * BLOCK + 7 * BLOCK, 0.5 * 2 * BLOCK),
    )


def test_the_first_steps_after_a_switch_do_not_count() -> None:
    """The draft model reads what was said without it, all at once."""
    slow = [Step(frozenset("a"), 4, 4, 99.0)] * 2
    (comparison,) = told((steps(BLOCK), False), (slow + steps(BLOCK), True), (slow + steps(BLOCK), False))
    assert comparison.plain.seconds == 0.5 * BLOCK
    assert comparison.speculative.seconds == 0.5 * 2 * BLOCK


def test_a_number_of_rows_is_compared_only_with_itself() -> None:
    plain = steps(20, 4, rows=4) + steps(20, 2, rows=2)
    before = steps(20, 8, rows=4) + steps(20, 6, rows=3)
    after = steps(22, 8, rows=4) + steps(20, 5, rows=2)
    made = told((before, False), (plain, True), (after, False))
    assert {c.rows_in_flight: (c.plain.tokens, c.speculative.tokens) for c in made} == {
        4: (4 * 18, 8 * 40),
        2: (2 * 20, 5 * 20),
    }
    assert {c.block for c in made} == {1}, "they were measured together"


def test_too_few_steps_of_a_kind_say_nothing() -> None:
    plain = steps(BLOCK - 3) + steps(3, rows=2)
    made = told((steps(BLOCK), False), (plain, True), (steps(BLOCK + 2, rows=2), False))
    assert [c.rows_in_flight for c in made] == [4]


def test_steps_with_others_in_flight_are_another_kind() -> None:
    plain = steps(20) + steps(20, of="ab")
    made = told((steps(BLOCK), False), (plain, True), (steps(BLOCK + 2, of="ab"), False))
    assert [c.groups for c in made] == [frozenset("a"), frozenset("ab")]


def test_a_block_after_which_nothing_comes_is_compared_with_what_was_before() -> None:
    (comparison,) = told((steps(BLOCK, 9), False), (steps(20), True), conclude=True)
    assert (comparison.plain.steps, comparison.speculative.steps) == (18, BLOCK)


def test_every_block_is_counted_and_speculative_steps_between_two_serve_both() -> None:
    made = told(
        (steps(BLOCK, 9), False),
        (steps(BLOCK), True),
        (steps(BLOCK, 8), False),  # the next one comes before the steps after this one are all there
        (steps(BLOCK), True),
        (steps(BLOCK + 2, 7), False),
    )
    assert [c.block for c in made] == [1, 2]
    assert [c.speculative.tokens for c in made] == [
        9 * BLOCK + 8 * (BLOCK - 2),
        8 * (BLOCK - 2) + 7 * BLOCK,
    ]


def test_a_block_without_neighbours_says_nothing() -> None:
    assert told((steps(BLOCK), True), conclude=True) == []
