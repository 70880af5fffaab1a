"""producer cancel"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("cancel")
@batch_argument
@json_option
def command(batch: str, as_json: bool) -> None:
    """End a batch now. What has finished is kept, what runs is stopped within seconds.

    Taken up again with producer retry BATCH --cancelled.

    \b
    Example:
      producer cancel batch_0198
    """
    from producer.actions import cancel

    cancel(batch, as_json)
