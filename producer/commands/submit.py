"""producer submit"""

from pathlib import Path
from typing import Any

import click

from producer.commands.common import Window, json_option
from producer.priorities import PRIORITIES


class KeyValue(click.ParamType[tuple[str, str]]):
    """One entry of metadata."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, separator, inner = str(value).partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, inner


EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("submit")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=click.Path(exists=True, allow_dash=True, path_type=Path),
)
@click.option("--pair", help="Target model and drafter, by name. Default: default_pair of the settings.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy.  Default: the model's own.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Default: the model's own.")
@click.option("--top-k", type=click.IntRange(0), help="0 is off.  Default: the model's own.")
@click.option("--max-tokens", type=click.IntRange(1), help="For each sample.  Default: the pair's.")
@click.option("-n", "n", type=click.IntRange(1, 128), default=1, show_default=True, help="Samples a prompt.")
@click.option("--stop", multiple=True, help="End where this text would come; may be given up to 16 times.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="Draw the same samples again.  Default: random."
)
@click.option("--priority", type=click.Choice(list(PRIORITIES)), default="normal", show_default=True)
@click.option("--completion-window", type=Window(), help="Expire what is not done in this time, such as 24h.")
@click.option("--name", help="A name for the batch, and for its source whatever its paths.")
@click.option("--metadata", type=KeyValue(), multiple=True, help="Kept with the batch; may be repeated.")
@click.option("--system", help="System message for prompts that have none of their own.")
@click.option(
    "--template", type=EXISTING_FILE, help="Jinja template that makes prompts of rows; fields are variables."
)
@click.option("--raw", is_flag=True, help="Give prompts to the model as they are, without its chat template.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many prompts.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only files whose relative path matches.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No files whose relative path matches.")
@click.option(
    "--on-error",
    type=click.Choice(["skip", "fail"]),
    default="skip",
    show_default=True,
    help="Whether the good items run where some are bad.",
)
@click.option("--fresh", is_flag=True, help="Generate everything again, whatever earlier batches hold.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, store nothing.")
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Whether to stay until the end.  Default: only without a broker configured.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, **options: Any) -> None:
    """Run prompts: every *.txt, *.md and *.prompt file is one, *.jsonl, *.json and *.csv hold one a row.

    PATH is a folder, a file, or - for JSONL on standard input. Rows have prompt or messages, or are OpenAI
    batch lines. Submitting the same again continues what is unfinished and reuses what is unchanged.

    Without a broker configured, a local one and a worker are started, and stopped at the end; with --no-wait
    they go on in the background until the batch has ended.

    Prints the batch's id. Exit codes: 0 all succeeded, 1 error, 2 usage, 3 prompts failed or bad items were
    left out, 4 cancelled or expired, 130 interrupted.

    \b
    Example:
      producer submit ./batch_inputs --max-tokens 200
      producer submit rows.jsonl --pair smollm2 --temperature 0.7 --seed 1 -n 4
      zcat rows.jsonl.gz | producer submit - --name nightly --no-wait
    """  # fmt: skip
    if Path("-") in options["paths"] and len(options["paths"]) > 1:
        raise click.UsageError("- (standard input) cannot be mixed with other paths")
    if options["raw"] and options["system"] is not None:
        raise click.UsageError("--system is a chat message; --raw prompts are no chat")
    from producer.submitting import run

    options["priority"] = PRIORITIES[options["priority"]]
    options["metadata"] = dict(options["metadata"])
    ctx.exit(run(**options))
