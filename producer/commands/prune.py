"""producer prune"""

from datetime import timedelta

import click

from producer.commands.common import Window, json_option


@click.command("prune")
@click.option(
    "--older-than",
    type=Window(zero=True),
    default="30d",
    show_default=True,
    help="Batches that ended longer ago.",
)
@click.option("--keep-latest", is_flag=True, help="Keep each source's latest batch, for submit to reuse.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. On anything but a terminal nothing is asked.")
@json_option
def command(older_than: timedelta, keep_latest: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete old batches with their prompts and results, for good.

    Only ended ones, and none whose results a batch that stays has reused: those are listed with the reason.

    \b
    Example:
      producer prune --dry-run
      producer prune --older-than 90d --keep-latest
    """
    from producer.prune import prune

    prune(older_than, keep_latest, dry_run, yes, as_json)
