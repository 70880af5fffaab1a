"""producer status"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("status")
@batch_argument
@json_option
@click.pass_context
def command(ctx: click.Context, batch: str, as_json: bool) -> None:
    """How far a batch is, now. BATCH is an id, the beginning of one, or a name.

    The exit code says how it stands: 0 well, 3 with failed prompts or bad items, 4 cancelled or expired.

    \b
    Example:
      producer status batch_0198
      producer status nightly --json | jq .prompts
    """
    from producer.status import show_status

    ctx.exit(show_status(batch, as_json))
