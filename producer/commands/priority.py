"""producer priority"""

import click

from producer.commands.common import batch_argument, json_option
from producer.priorities import PRIORITIES


@click.command("priority")
@batch_argument
@click.argument("priority", type=click.Choice(list(PRIORITIES)))
@json_option
def command(batch: str, priority: str, as_json: bool) -> None:
    """Change a queued batch's priority: what waits is started in the new order, what runs goes on.

    \b
    Example:
      producer priority batch_0198 high
    """
    from producer.actions import set_priority

    set_priority(batch, PRIORITIES[priority], as_json)
