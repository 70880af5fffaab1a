"""What several commands take."""

import click

batch_argument = click.argument("batch", metavar="BATCH")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
