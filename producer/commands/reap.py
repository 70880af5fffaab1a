"""producer reap"""

import click

from producer.commands.common import json_option


@click.command("reap")
@json_option
def command(as_json: bool) -> None:
    """One reaper pass: take prompts back from dead workers, keep deadlines, end batches, ring for the rest.

    Workers do this all the time; run it by hand or by cron where none is alive.

    \b
    Example:
      producer reap
    """
    from producer.reap import reap_once

    reap_once(as_json)
