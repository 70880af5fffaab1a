"""producer pause"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("pause")
@batch_argument
@json_option
def command(batch: str, as_json: bool) -> None:
    """Hold a batch up: nothing of it is started, what runs goes back to the queue within seconds.

    A deadline goes on all the same.

    \b
    Example:
      producer pause batch_0198
    """
    from producer.actions import pause

    pause(batch, as_json)
