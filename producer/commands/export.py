"""producer export"""

from pathlib import Path

import click

from producer.commands.common import batch_argument


@click.command("export")
@batch_argument
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "openai", "csv"]), default="jsonl", show_default=True,
    help="openai: as the Batch API's output and error files.",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; else standard output.",
)
@click.option(
    "--errors", type=click.Path(dir_okay=False, path_type=Path),
    help="With openai: file for prompts without a result. Default: NAME.errors.jsonl beside --output.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, batch: str, form: str, output: Path | None, errors: Path | None) -> None:
    """Write a batch's results, in order of submission, streamed.

    jsonl has a line for each prompt, whatever became of it; csv one for each sample, or for a prompt without.

    \b
    Example:
      producer export batch_0198 --format openai -o results.jsonl
      producer export nightly --format csv > results.csv
    """
    from producer.export import export

    if errors is not None and form != "openai":
        raise click.UsageError("--errors goes with --format openai; the others hold every prompt")
    ctx.exit(export(batch, form, output, errors))
