"""producer watch"""

import click

from producer.commands.common import batch_argument


@click.command("watch")
@batch_argument
@click.pass_context
def command(ctx: click.Context, batch: str) -> None:
    """Show a batch's progress until it has ended. Ctrl-C stops watching, not the batch.

    \b
    Example:
      producer watch batch_0198
    """
    from producer.status import watch

    ctx.exit(watch(batch))
