"""Submitting: what is stored, and what submitting again does."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import Engine, func, select

from db import batches
from db.connect import reading, writing
from db.tables import Batch, Prompt
from tests.producer.conftest import Run
from tests.producer.working import register, work
from worker.wire.pairs import fingerprint, get_pair


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "prompts"
    path.mkdir()
    (path / "a.txt").write_text("one")
    (path / "b.txt").write_text("two")
    (path / "rows.jsonl").write_text('{"prompt": "three", "custom_id": "c", "max_tokens": 5}\n')
    return path


def all_rows(engine: Engine, table: Any) -> list[Any]:
    with reading(engine) as conn:
        order = table.position if table is Prompt else table.created_at
        return list(conn.execute(select(table).order_by(order)).all())


def batch_of(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def statuses(engine: Engine, batch_id: str) -> dict[str, str]:
    with reading(engine) as conn:
        found = select(Prompt.custom_id, Prompt.status).where(Prompt.batch_id == batch_id)
        return {row.custom_id: row.status for row in conn.execute(found.order_by(Prompt.position))}


def test_a_folder_becomes_a_sealed_batch_of_pending_prompts(fleet: Engine, run: Run, folder: Path) -> None:
    sampling = ["--temperature", "0.5", "--stop", "END", "-n", "2", "--seed", "7"]
    about = ["--name", "nightly", "--metadata", "team=a=b", "--priority=high", "--completion-window=2h"]
    result = run("submit", folder, *sampling, *about)

    batch_id = batch_of(result)
    (batch,) = all_rows(fleet, Batch)
    assert batch.id == batch_id
    assert (batch.name, batch.pair, batch.status, batch.priority) == ("nightly", "smollm2", "in_progress", 2)
    assert batch.sampling == {"temperature": 0.5, "stop": ["END"], "seed": 7}
    assert batch.seed == 7
    assert batch.metadata == {"team": "a=b"}
    assert (batch.deadline - batch.created_at).total_seconds() == 7200
    assert batch.sealed_at is not None
    prompts = all_rows(fleet, Prompt)
    assert [(p.position, p.custom_id, p.source_line, p.n) for p in prompts] == [
        (0, "a.txt", None, 2), (1, "b.txt", None, 2), (2, "c", 1, 2)
    ]  # fmt: skip
    assert prompts[0].source_path == str(folder / "a.txt")
    assert [p.sampling for p in prompts] == [None, None, {"max_tokens": 5}]
    assert {p.status for p in prompts} == {"pending"}


def test_bells_are_rung_after_the_commit_and_remembered(
    fleet: Engine, run: Run, folder: Path, valkey_url: str
) -> None:
    from worker.wire.app import make_app
    from worker.wire.bells import waiting

    register(fleet)
    result = run("submit", folder)
    batch_of(result)
    assert "no live worker" not in result.stderr
    assert waiting(make_app(valkey_url), "smollm2") == 3
    assert all(prompt.rung_at is not None for prompt in all_rows(fleet, Prompt))


@pytest.mark.usefixtures("fleet")
def test_a_pair_that_no_worker_serves_is_accepted_with_a_warning(run: Run, folder: Path) -> None:
    result = run("submit", folder)
    batch_of(result)
    assert 'no live worker serves pair "smollm2"; start one: worker start --pair smollm2' in result.stderr


def test_an_unknown_pair_is_refused_with_those_known(fleet: Engine, run: Run, folder: Path) -> None:
    result = run("submit", folder, "--pair", "nobody")
    assert result.exit_code == 1
    assert 'unknown pair "nobody"; known here: smollm2' in result.stderr
    assert all_rows(fleet, Batch) == []


def test_a_pair_served_with_another_fingerprint_is_refused_with_both(
    fleet: Engine, run: Run, folder: Path
) -> None:
    register(fleet, pair_fingerprint="0123456789abcdef")
    result = run("submit", folder)
    assert result.exit_code == 1
    assert "0123456789abcdef" in result.stderr
    assert fingerprint(get_pair("smollm2")) in result.stderr


def test_a_pair_changed_under_an_unfinished_batch_is_refused_with_both(
    fleet: Engine, run: Run, folder: Path, tmp_path: Path
) -> None:
    first = batch_of(run("submit", folder))
    submitted = fingerprint(get_pair("smollm2"))
    (tmp_path / "specmill.toml").write_text('[pairs.smollm2]\ntarget = { folder = "elsewhere" }\n')
    result = run("submit", folder)
    assert result.exit_code == 1
    assert first in result.stderr
    assert submitted in result.stderr
    assert submitted != fingerprint(get_pair("smollm2"))
    assert len(all_rows(fleet, Batch)) == 1


def test_submitting_again_when_all_is_done_generates_nothing(fleet: Engine, run: Run, folder: Path) -> None:
    first = batch_of(run("submit", folder))
    work(fleet)

    again = run("submit", folder)

    assert batch_of(again) == first
    assert f"nothing to do: all 3 prompts are unchanged and succeeded in batch {first}" in again.stderr
    assert len(all_rows(fleet, Batch)) == 1
    assert len(all_rows(fleet, Prompt)) == 3


def test_what_changed_or_failed_runs_again_and_the_rest_is_reused(
    fleet: Engine, run: Run, folder: Path
) -> None:
    first = batch_of(run("submit", folder))
    work(fleet, failing={"b.txt"})
    (folder / "rows.jsonl").write_text(
        '{"prompt": "3", "custom_id": "c"}\n{"prompt": "four", "custom_id": "d"}\n'
    )

    again = run("submit", folder)

    second = batch_of(again)
    assert second != first
    assert "4 prompts, 1 of them done before and reused" in again.stderr
    assert statuses(fleet, second) == {
        "a.txt": "succeeded",
        "b.txt": "pending",
        "c": "pending",
        "d": "pending",
    }
    work(fleet)
    (folder / "e.txt").write_text("five")
    third = batch_of(run("submit", folder))
    with reading(fleet) as conn:
        roots = select(Prompt.reused_from).where(Prompt.batch_id == third, Prompt.custom_id == "a.txt")
        origin = select(Prompt.id).where(Prompt.batch_id == first, Prompt.custom_id == "a.txt")
        assert conn.execute(roots).scalar() == conn.execute(origin).scalar()


@pytest.mark.parametrize(
    "change", [["--temperature", "0.1"], ["--system", "Be brief."], ["-n", "2"], ["--seed", "1"]]
)
def test_other_options_are_other_work(local: Engine, run: Run, folder: Path, change: list[str]) -> None:
    first = batch_of(run("submit", folder))
    work(local)
    second = batch_of(run("submit", folder, *change))
    assert second != first
    assert set(statuses(local, second).values()) == {"pending"}


def test_fresh_generates_everything_again(local: Engine, run: Run, folder: Path) -> None:
    first = batch_of(run("submit", folder))
    work(local)
    second = batch_of(run("submit", folder, "--fresh"))
    assert second != first
    assert set(statuses(local, second).values()) == {"pending"}


def test_an_unfinished_batch_is_continued_and_differences_are_told(
    fleet: Engine, run: Run, folder: Path
) -> None:
    first = batch_of(run("submit", folder))
    work(fleet, limit=1)
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("changed")
    (folder / "new.txt").write_text("new")

    again = run("submit", folder)

    assert batch_of(again) == first
    assert f"batch {first} of this source is unfinished: it is continued" in again.stderr
    assert "1 new, 1 changed and 1 removed" in again.stderr
    assert len(all_rows(fleet, Batch)) == 1


def test_a_submission_cut_off_while_storing_is_stored_again(fleet: Engine, run: Run, folder: Path) -> None:
    first = batch_of(run("submit", folder))
    with writing(fleet) as conn:  # as kill -9 leaves it: some rows, no seal
        conn.execute(Batch.__table__.update().values(sealed_at=None, status="validating"))
        conn.execute(Prompt.__table__.delete().where(Prompt.custom_id == "c"))

    second = batch_of(run("submit", folder))

    assert statuses(fleet, second) == {"a.txt": "pending", "b.txt": "pending", "c": "pending"}
    with reading(fleet) as conn:
        assert conn.execute(select(func.count()).select_from(Batch)).scalar() == 1
    assert first != second


def test_a_submission_that_another_one_replaced_ends_with_a_clear_message(local: Engine) -> None:
    from producer.errors import ProducerError
    from producer.inputs import Item
    from producer.staging import CHUNK, stage
    from tests.db.given import new_batch

    def items() -> Any:
        for number in range(2 * CHUNK):
            if number == CHUNK + 1:
                with writing(local) as conn:
                    for batch in batches.list_recent(conn, 10):
                        batches.delete(conn, batch.id)
            yield Item("r.jsonl", number, custom_id=str(number), text="a")

    with pytest.raises(ProducerError, match="another submit of the same source took over"):
        stage(local, new_batch(), items(), 1, None)


def test_bad_items_are_listed_counted_and_exit_3(fleet: Engine, run: Run, folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "rows.jsonl").write_text('{"prompt": "three"\n')

    result = run("submit", folder)

    assert result.exit_code == 3
    assert f"bad item: {folder / 'empty.txt'}: empty" in result.stderr
    assert f"bad item: {folder / 'rows.jsonl'}:1: not JSON" in result.stderr
    (batch,) = all_rows(fleet, Batch)
    assert batch.num_input_errors == 2
    assert [error["line"] for error in batch.input_errors] == [None, 1]
    assert len(all_rows(fleet, Prompt)) == 2


def test_on_error_fail_stores_nothing(local: Engine, run: Run, folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    result = run("submit", folder, "--on-error", "fail")
    assert result.exit_code == 1
    assert "empty.txt" in result.stderr
    assert result.stdout == ""
    assert all_rows(local, Batch) == all_rows(local, Prompt) == []


def test_where_every_item_is_bad_there_is_no_batch(local: Engine, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    result = run("submit", tmp_path / "empty.txt")
    assert result.exit_code == 3
    assert all_rows(local, Batch) == []


def test_an_empty_directory_is_named_with_what_was_expected(local: Engine, run: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    result = run("submit", tmp_path / "nothing")
    assert result.exit_code == 1
    assert f"no prompts in {tmp_path / 'nothing'}; expected *.txt, *.md" in result.stderr
    assert all_rows(local, Batch) == []


def test_every_sampling_option_of_the_command_line_is_stored(local: Engine, run: Run, folder: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    (folder.parent / "point.json").write_text(json.dumps(schema))
    numbers = ["--min-p=0.1", "--min-tokens=2", "--logprobs=3", "--stop-token-id=7", "--stop-token-id=8"]
    penalties = ["--repetition-penalty=1.1", "--presence-penalty=0.5", "--frequency-penalty=-0.5"]
    biases = ["--logit-bias", "198=-100", "--logit-bias", "5=2.5"]

    batch_of(
        run(
            "submit", folder, *numbers, *penalties, *biases, "--response-format", folder.parent / "point.json"
        )
    )

    (batch,) = all_rows(local, Batch)
    assert batch.sampling == {
        "min_p": 0.1,
        "min_tokens": 2,
        "logprobs": 3,
        "stop_token_ids": [7, 8],
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"198": -100, "5": 2.5},
        "response_format": {"type": "json_schema", "json_schema": {"name": "point", "schema": schema}},
    }


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (["--response-format", "json"], {"type": "json_object"}),
        (["--regex", "[a-z]+"], {"type": "regex", "regex": "[a-z]+"}),
    ],
)
def test_a_format_needs_no_file(
    local: Engine, run: Run, folder: Path, given: list[str], stored: dict[str, Any]
) -> None:
    batch_of(run("submit", folder, *given))
    (batch,) = all_rows(local, Batch)
    assert batch.sampling == {"response_format": stored}


def test_a_missing_path_is_a_usage_error(run: Run) -> None:
    result = run("submit", "./nowhere")
    assert result.exit_code == 2
    assert "'./nowhere' does not exist" in result.stderr


@pytest.mark.usefixtures("local")
def test_standard_input_is_always_new_unless_named(run: Run) -> None:
    one = batch_of(run("submit", "-", stdin='{"prompt": "a"}\n'))
    two = batch_of(run("submit", "-", stdin='{"prompt": "a"}\n'))
    named = batch_of(run("submit", "-", "--name", "pipe", stdin='{"prompt": "a"}\n'))
    again = batch_of(run("submit", "-", "--name", "pipe", stdin='{"prompt": "a"}\n'))
    assert len({one, two, named}) == 3
    assert named == again


@pytest.mark.usefixtures("local")
def test_json_tells_a_machine_all_of_it(run: Run, folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    result = run("submit", folder, "--json")
    told = json.loads(result.stdout)
    assert told["batch_id"].startswith("batch_")
    assert (told["outcome"], told["prompts"], told["num_input_errors"]) == ("new", 3, 1)
    assert told["input_errors"][0]["path"] == str(folder / "empty.txt")


def test_a_dry_run_reads_everything_and_needs_no_database(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "empty.txt").write_text("")
    result = run("submit", folder, "--dry-run")
    assert result.exit_code == 3
    assert "3 prompts would be submitted" in result.stderr
    assert "empty.txt" in result.stderr
    assert not (tmp_path / "state").exists()


def test_the_model_that_openai_lines_name_is_told_and_kept(local: Engine, run: Run, tmp_path: Path) -> None:
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "a"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "b.jsonl").write_text(json.dumps(line))
    result = run("submit", tmp_path / "b.jsonl")
    assert "rows ask for the model gpt-4o-mini" in result.stderr
    assert all_rows(local, Prompt)[0].metadata == {"model": "gpt-4o-mini"}
