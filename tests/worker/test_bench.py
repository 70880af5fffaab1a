"""`worker bench`: what it measures, what it stores, and what it refuses before it has loaded anything."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, select

from db.tables import Baseline
from tests.worker.queued import rows
from tests.worker.test_quality import generated
from worker.bench.arms import PLAIN, Arm
from worker.bench.prompts import read_prompts
from worker.bench.results import Level, first_difference, summarize
from worker.bench.running import Run, run
from worker.bench.showing import as_text
from worker.cli import main
from worker.engine import Engine as GeneratingEngine
from worker.engine import FolderModel, Pair, Request, Sampling
from worker.engine.drafters import NoDrafter
from worker.engine.planner import VerifyAll
from worker.errors import ConfigurationError

ARM = Arm("prompt_lookup 3", "prompt_lookup", 3, NoDrafter, VerifyAll(3))

Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"the thing in the other thing {number}"} for number in range(9)]
    lines.append({"messages": [{"role": "user", "content": "one or the other"}]})
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.fixture
def bench(
    tiny_toml: Path,  # noqa: ARG001 (declares the pair)
    database_url: str,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    monkeypatch.setenv("SPECMILL_DATABASE_URL", database_url)

    def bench(*options: str, file: Path = prompts) -> tuple[int, str, str]:
        given = ["bench", str(file), "--pair", "tiny", *options]
        result = CliRunner().invoke(main, given)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return bench


BRIEF = ("--rows", "1,2", "--gamma", "2", "--rounds", "2", "--max-tokens", "8")


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_every_arm_is_measured_beside_plain_decoding(bench: Bench, database: Engine, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    code, out, err = bench(*BRIEF, "--json", "--plot", str(picture))
    assert code == 0, err
    told = json.loads(out)
    assert (told["pair"], told["rounds"], told["max_tokens"]) == ("tiny", 2, 8)
    assert [level["rows_in_flight"] for level in told["levels"]] == [1, 2]
    for level in told["levels"]:
        arms = {arm["arm"]: arm for arm in level["arms"]}
        assert list(arms) == [PLAIN, "prompt_lookup 2", "suffix 2", "prompt_lookup, planned"]
        assert (arms[PLAIN]["speedup"], arms[PLAIN]["acceptance_length"]) == (1.0, None)
        assert {arm["identical"] for arm in level["arms"]} == {1.0}, "in float64 a drafter changes nothing"
        assert all(arm["peak_memory"] > 0 and arm["first_token_seconds"] > 0 for arm in level["arms"])
        assert all(len(arm["rounds"]) == 2 for arm in level["arms"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    stored = rows(database, select(Baseline.__table__).order_by(Baseline.rows_in_flight))
    plain = [level["arms"][0]["tokens_per_second"] for level in told["levels"]]
    assert [(row.pair, row.rows_in_flight) for row in stored] == [("tiny", 1), ("tiny", 2)]
    assert [row.tokens_per_second for row in stored] == plain


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_table_has_a_line_for_each_arm_and_baselines_are_replaced(bench: Bench, database: Engine) -> None:
    for _ in range(2):
        code, out, _ = bench("--rows", "2", "--gamma", "2", "--rounds", "2", "--max-tokens", "4")
        assert code == 0
    assert "2 in flight, 8 prompts\n" in out
    assert [line.split()[0] for line in out.splitlines()[-4:]] == [
        "plain", "prompt_lookup", "suffix", "prompt_lookup,",
    ]  # fmt: skip
    assert len(rows(database, select(Baseline.__table__))) == 1


@pytest.mark.parametrize(
    ("speedups", "helps"), [([1.1, 1.2, 1.3], "yes"), ([0.7, 0.8, 0.9], "no"), ([0.9, 1.0, 1.1], "even")]
)
def test_the_table_says_where_a_drafter_does_not_help(speedups: list[float], helps: str) -> None:
    plain = [Run([generated([1, 2])], 1.0, 10)] * 3
    runs = [Run([generated([1, 2])], 1 / speedup, 10) for speedup in speedups]
    own = Arm(PLAIN, "none", None, NoDrafter, VerifyAll(3))
    arms = [summarize(own, plain, plain), summarize(ARM, runs, plain)]
    _, header, *lines = as_text([Level(1, 1, arms)]).splitlines()
    place = header.index("helps")
    assert [line[place : place + 5].strip() for line in lines] == ["-", helps]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--rows", "64"), "64 rows in flight need as many prompts, and {file} has 10"),
        (("--rows", "0"), "expected whole numbers from 1, such as 1,4,16,64, got '0'"),
        (("--rows", "2", "--plot", "picture.svg"), "expected a file name that ends in .png"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    bench: Bench, prompts: Path, options: Sequence[str], complaint: str
) -> None:
    code, _, err = bench(*options)
    assert code == 2
    assert complaint.format(file=prompts) in err
    assert "warming up" not in err


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_plot_without_matplotlib_names_the_extra(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = bench("--rows", "1", "--plot", "picture.png")
    assert (code, "pip install 'specmill[bench]'" in err) == (2, True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"prompt": "good"}\n{"prompt": 3}\n', r"rows.jsonl:2: expected an object with a prompt"),
        ('{"prompt": "good"}\n\n{"messages": []}\n', r"rows.jsonl:3: expected an object"),
        ('{"prompt"', r"rows.jsonl:1: not JSON"),
        ("\n", r"rows.jsonl has no prompts"),
        (b"\xff", r"rows.jsonl cannot be read .*UTF-8"),
    ],
)
def test_a_bad_prompt_is_named_by_file_and_line(content: str | bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=complaint):
        read_prompts(file)


def test_the_first_token_that_differs_or_is_missing_is_found() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_rounds_are_summed_up_by_their_medians_and_ratios_within_a_round() -> None:
    """Twice as fast as plain in each round, though the machine got four times slower."""
    agrees, differs = generated([1, 2, 3, 4]), generated([1, 2, 9, 9])
    plain = [Run([agrees, agrees], seconds, 10) for seconds in (1.0, 2.0, 4.0)]
    runs = [Run([agrees, differs], seconds / 2, 20) for seconds in (1.0, 2.0, 4.0)]
    result = summarize(ARM, runs, plain)
    assert (result.tokens_per_second, result.rounds) == (8.0, [16.0, 8.0, 4.0])
    assert (result.speedup, result.speedup_low, result.speedup_high) == (2.0, 2.0, 2.0)
    assert (result.identical, result.first_divergence) == (0.5, 2.0)
    assert (result.acceptance_length, result.acceptance_rate) == (1 + 180 / 40, 0.9)
    assert (result.peak_memory, result.first_token_seconds) == (20, 0.1)
    same = summarize(replace(ARM, method="none"), plain, plain)
    assert (same.identical, same.first_divergence) == (1.0, None)


def test_never_more_rows_are_in_flight_than_asked_for(tiny_folder: Path) -> None:
    engine = GeneratingEngine(Pair(FolderModel(tiny_folder / "tiny"), "none", dtype="float64", max_rows=8))
    sampling = Sampling(max_tokens=6, min_tokens=6)
    requests = [Request(f"p{number}", (5, 6, 7 + number), sampling) for number in range(7)]
    done = run(engine, requests, rows=3)
    assert [generation.request_id for generation in done.generations] == [f"p{n}" for n in range(7)]
    assert max(generation.rows_in_flight for generation in done.generations) <= 3
    assert done.tokens_per_second > 0
