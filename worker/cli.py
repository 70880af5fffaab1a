"""The `worker` command. What is heavy is imported by the command that needs it."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

ReportsErrors = Callable[..., Any]


def _says_why(command: ReportsErrors) -> ReportsErrors:
    """Errors meant for a person become one line and an exit code; a bug keeps its traceback."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from db.errors import ConfigError, DatabaseError
        from worker.errors import ConfigurationError
        from worker.wire.app import BrokerError
        from worker.wire.pairs import UnknownPair

        try:
            return command(*args, **kwargs)
        except (ConfigurationError, ConfigError, UnknownPair, BrokerError, DatabaseError) as error:
            click.echo(f"worker: {error}", err=True)
            sys.exit(2 if isinstance(error, UnknownPair | ConfigError | ConfigurationError) else 1)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="specmill")
def main() -> None:
    """Run prompts of submitted batches on this machine's devices.

    \b
    Example:
      SPECMILL_BROKER_URL=redis://broker:6379/0 \\
      SPECMILL_DATABASE_URL=postgresql://specmill@database/specmill \\
      worker start --devices all
    """


@main.command()
@click.option(
    "--devices",
    default="all",
    show_default=True,
    help="all (GPUs, or the CPU where there is none), GPU numbers such as 0,2, cpu, or cpu:N.",
)
@click.option("--pair", default=None, help="The pair to serve.  [default: default_pair of specmill.toml]")
@click.option(
    "--grace",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds that running prompts get to finish when told to stop; the rest is released.",
)
@click.option(
    "--concurrency",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many claims a process works on at once.",
)
@_says_why
def start(devices: str, pair: str | None, grace: float, concurrency: int) -> None:
    """Serve a pair: one process for each device, until told to stop.

    The first SIGTERM or Ctrl-C drains, a second one stops at once. Exit codes: 0 stopped as told, 1 the
    broker or database is away or the processes kept dying, 2 the configuration cannot work.

    \b
    Examples:
      worker start --devices cpu
      worker start --devices 0,1 --pair qwen3 --grace 300
    """
    from worker import logs
    from worker.devices import parse
    from worker.fleet import Fleet, command_for
    from worker.preflight import check
    from worker.wire.settings import WireSettings

    logs.configure("worker")
    pair = pair or WireSettings().default_pair
    pinned = parse(devices)
    check(pair)  # once here, so that four processes do not say the same thing four times
    sys.exit(Fleet(pinned, command_for(pair, concurrency, grace), grace).run())


@main.command()
@click.option("--check", "checked", metavar="NAME|all", help="Load the pair and check that it can serve.")
@click.option("--device", default="cpu", show_default=True, help="Where --check loads it: cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@_says_why
def pairs(checked: str | None, device: str, as_json: bool) -> None:
    """List the pairs this host knows, and check them.

    \b
    Examples:
      worker pairs
      worker pairs --check smollm2
    """
    from worker.pair_list import print_pairs

    sys.exit(print_pairs(checked, device, as_json))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@_says_why
def status(as_json: bool) -> None:
    """Show the workers that are alive, whatever machine they run on.

    \b
    Example:
      worker status
    """
    from worker.status import print_status

    print_status(as_json)


def _numbers(_context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Such as 1,4,16; in order, each once."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in value.split(",")]
    if min(numbers) < 1:
        raise click.BadParameter(f"expected whole numbers from 1, such as {option.default}, got {value!r}.")
    return sorted(set(numbers))


@main.command()
@click.argument("prompts", type=click.Path(path_type=Path))
@click.option("--pair", default=None, help="The pair to measure.  [default: default_pair of specmill.toml]")
@click.option(
    "--rows", default="1,4,16,64", show_default=True, callback=_numbers, help="Numbers of rows in flight."
)
@click.option(
    "--gamma", default="2,3,5,8", show_default=True, callback=_numbers, help="Proposals per row and step."
)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(min=2), help="Runs of each.")
@click.option(
    "--max-tokens", default=128, show_default=True, type=click.IntRange(min=1), help="Of an output."
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--plot", type=click.Path(path_type=Path), help="A PNG file to draw; needs matplotlib.")
@_says_why
def bench(
    prompts: Path,
    pair: str | None,
    rows: list[int],
    gamma: list[int],
    rounds: int,
    max_tokens: int,
    device: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure a pair: every drafter it could use beside plain decoding, greedily, on your own prompts.

    PROMPTS is a JSONL file whose rows have a "prompt" or "messages". Each drafter runs at each gamma with
    everything verified, and the pair's own as its planner decides. What plain decoding reached goes into the
    database's table "baselines". Nothing else should run meanwhile.

    \b
    Example:
      worker bench prompts.jsonl --pair smollm2 --rows 1,8 --plot smollm2.png
    """
    from worker.bench.command import Options
    from worker.bench.command import bench as measure
    from worker.wire.settings import WireSettings

    pair = pair or WireSettings().default_pair
    measure(prompts, Options(pair, rows, gamma, rounds, max_tokens, device, as_json, plot))


@main.command()
@click.option(
    "--pair",
    default=None,
    help="The pair whose target is learnt from.  [default: default_pair of specmill.toml]",
)
@click.option(
    "--prompts", type=click.Path(path_type=Path), help="A JSONL file, whose rows have a prompt or messages."
)
@click.option(
    "--from-batch",
    "batch",
    metavar="ID",
    help="Or a batch that was run: its prompts, sampled as they were, one answer each.",
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder of the drafter.")
@click.option(
    "--tokens",
    default=2_000_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Response tokens to learn from.",
)
@click.option(
    "--max-tokens", default=128, show_default=True, type=click.IntRange(min=2), help="Of a response, at most."
)
@click.option(
    "--gamma",
    type=click.IntRange(1, 16),
    help="Tokens that it drafts at once.  [default: 5; not with --begin-from]",
)
@click.option(
    "--draft-vocab",
    type=click.IntRange(min=1),
    help="Tokens that it can propose: those the target is likeliest to say. Fewer are faster; with "
    "--begin-from they may become more.  [default: 16384, or what --begin-from has]",
)
@click.option(
    "--begin-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of a drafter that is to learn more.  [default: a new one]",
)
@click.option(
    "--epochs",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Passes over the responses. Each learns from somewhat less than half of their positions: those "
    "where decoding would most likely begin a block.",
)
@click.option(
    "--minutes",
    default=float("inf"),
    type=click.FloatRange(min=0, min_open=True),
    help="Training ends after so many, even if epochs are left; the answering before it is not counted.  "
    "[default: no limit]",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@_says_why
def distill(
    pair: str | None,
    prompts: Path | None,
    batch: str | None,
    output: Path,
    tokens: int,
    max_tokens: int,
    gamma: int | None,
    draft_vocab: int | None,
    begin_from: Path | None,
    epochs: float,
    minutes: float,
    device: str,
) -> None:
    """Train a drafter for a pair's target, on what the target itself answers to your prompts.

    The output folder keeps what was captured and a checkpoint: the same command again continues.

    \b
    Examples:
      worker distill --prompts prompts.jsonl --output drafter --minutes 60
      worker distill --from-batch reviews --begin-from drafter --output drafter-2
    """
    if (prompts is None) == (batch is None):
        raise click.UsageError("expected either --prompts FILE or --from-batch ID: what to learn from.")
    from worker.distill.command import Options
    from worker.distill.command import distill as train
    from worker.wire.settings import WireSettings

    pair = pair or WireSettings().default_pair
    train(
        Options(
            pair,
            prompts,
            batch,
            output,
            tokens,
            max_tokens,
            gamma,
            draft_vocab,
            begin_from,
            epochs,
            minutes,
            device,
        )
    )


if __name__ == "__main__":
    main()
