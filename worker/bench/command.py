"""What `worker bench` does: load once, measure every arm, store the baselines, show."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from db import baselines, schema
from db.connect import connect, writing
from db.settings import DatabaseSettings
from worker.bench.arms import PLAIN, make_arms
from worker.bench.measuring import measure
from worker.bench.plot import check_plot, plot
from worker.bench.prompts import Prompt, read_prompts, token_ids
from worker.bench.results import Level
from worker.bench.showing import as_text
from worker.engine import Engine, EngineError, Request, Sampling
from worker.errors import ConfigurationError
from worker.identity import describe_device, versions
from worker.pairs import to_engine
from worker.wire.pairs import fingerprint, get_pair


@dataclass(frozen=True)
class Options:
    pair: str
    rows: Sequence[int]
    gammas: Sequence[int]
    rounds: int
    max_tokens: int
    device: str
    as_json: bool
    plot: Path | None


def bench(file: Path, options: Options) -> None:
    declared = get_pair(options.pair)
    prompts = read_prompts(file)
    _check_enough(prompts, options.rows, file)
    if options.plot is not None:
        check_plot(options.plot)
    db = connect(DatabaseSettings().url())
    schema.check(db)
    device_name, _ = describe_device(options.device)
    try:
        levels = _measure(prompts, options)
    except EngineError as error:
        raise ConfigurationError(str(error)) from error
    plain = {
        level.rows_in_flight: result.tokens_per_second
        for level in levels
        for result in level.arms
        if result.arm == PLAIN
    }
    with writing(db) as conn:
        baselines.record(conn, options.pair, fingerprint(declared), device_name, plain)
    title = f"{options.pair} ({declared.dtype}) on {device_name}, {options.max_tokens} tokens, {file.name}"
    if options.plot is not None:
        plot(title, levels, options.plot)
    if options.as_json:
        told = {
            "pair": options.pair,
            "pair_fingerprint": fingerprint(declared),
            "dtype": declared.dtype,
            "device_name": device_name,
            "versions": versions(),
            "prompts": str(file),
            "max_tokens": options.max_tokens,
            "rounds": options.rounds,
            "levels": [asdict(level) for level in levels],
        }
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(f"{title}\n\n{as_text(levels)}")


def _measure(prompts: Sequence[Prompt], options: Options) -> list[Level]:
    pair = to_engine(get_pair(options.pair), options.device)
    pair = replace(pair, max_rows=max(options.rows), baseline_share=0.0)
    engine = Engine(pair)
    sampling = Sampling(max_tokens=options.max_tokens)
    requests = [Request(prompt.place, token_ids(prompt, engine.tokenizer), sampling) for prompt in prompts]
    arms = make_arms(engine, pair, options.gammas)
    return [measure(engine, arms, requests, rows, options.rounds, _say) for rows in options.rows]


def _check_enough(prompts: Sequence[Prompt], rows: Sequence[int], file: Path) -> None:
    if max(rows) > len(prompts):
        raise ConfigurationError(
            f"{max(rows)} rows in flight need as many prompts, and {file} has {len(prompts)}: "
            f"add prompts, or name fewer rows, such as --rows 1,{min(4, len(prompts))}."
        )


def _say(progress: str) -> None:
    click.echo(progress, err=True)
