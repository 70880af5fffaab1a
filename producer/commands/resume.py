"""producer resume"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("resume")
@batch_argument
@json_option
def command(batch: str, as_json: bool) -> None:
    """Go on with a paused batch.

    \b
    Example:
      producer resume batch_0198
    """
    from producer.actions import resume

    resume(batch, as_json)
