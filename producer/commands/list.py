"""producer list"""

import click

from producer.commands.common import json_option


@click.command("list")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Batches, newest first."
)
@json_option
def command(limit: int, as_json: bool) -> None:
    """Recent batches, newest first.

    \b
    Example:
      producer list --limit 5
    """
    from producer.status import show_list

    show_list(limit, as_json)
