"""producer retry"""

from datetime import timedelta

import click

from producer.commands.common import Window, batch_argument, json_option


@click.command("retry")
@batch_argument
@click.option("--failed", "statuses", flag_value="failed", multiple=True, help="Every prompt that failed.")
@click.option("--cancelled", "statuses", flag_value="cancelled", multiple=True, help="Every cancelled one.")
@click.option("--expired", "statuses", flag_value="expired", multiple=True, help="Every expired one.")
@click.option(
    "--custom-id", "custom_ids", metavar="ID", multiple=True, help="This one; may be given several times."
)
@click.option(
    "--completion-window", type=Window(), help="A new deadline, from now.  Default: a passed one is removed."
)
@json_option
def command(
    batch: str,
    statuses: tuple[str, ...],
    custom_ids: tuple[str, ...],
    completion_window: timedelta | None,
    as_json: bool,
) -> None:
    """Run prompts again that failed, were cancelled or expired; the batch is open again.

    Those that succeeded are left as they are: producer submit --fresh generates everything again.

    \b
    Example:
      producer retry batch_0198 --failed
      producer retry batch_0198 --cancelled --expired --completion-window 24h
      producer retry batch_0198 --custom-id questions/tides.txt --custom-id row-7
    """
    if bool(statuses) == bool(custom_ids):
        raise click.UsageError("say which: --failed, --cancelled and --expired, or --custom-id ID")
    from producer.retry import retry_prompts

    retry_prompts(batch, statuses, custom_ids, completion_window, as_json)
