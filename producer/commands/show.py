"""producer show"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("show")
@batch_argument
@click.argument("custom_id")
@json_option
def command(batch: str, custom_id: str, as_json: bool) -> None:
    """One prompt as it was given, as the model saw it, and its samples.

    \b
    Example:
      producer show batch_0198 questions/tides.txt
    """
    from producer.show import show_prompt

    show_prompt(batch, custom_id, as_json)
