"""producer report"""

import click

from producer.commands.common import batch_argument, json_option


@click.command("report")
@batch_argument
@json_option
def command(batch: str, as_json: bool) -> None:
    """What a batch came to: totals, times, acceptance, failures with their reason, slowest prompts.

    \b
    Example:
      producer report batch_0198
      producer report nightly --json | jq .tokens_per_second
    """
    from producer.report import show_report

    show_report(batch, as_json)
