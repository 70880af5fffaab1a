"""`producer`: the command line. Commands are imported when they are asked for."""

from importlib import import_module
from typing import Any

import click

# name -> module; the command in it has the module's name.
COMMANDS = {
    "submit": "producer.commands.submit",
    "status": "producer.commands.status",
    "watch": "producer.commands.watch",
    "list": "producer.commands.list",
    "report": "producer.commands.report",
    "export": "producer.commands.export",
    "show": "producer.commands.show",
    "cancel": "producer.commands.cancel",
    "pause": "producer.commands.pause",
    "resume": "producer.commands.resume",
    "retry": "producer.commands.retry",
    "priority": "producer.commands.priority",
    "prune": "producer.commands.prune",
    "db": "producer.commands.db",
    "reap": "producer.commands.reap",
}


class Producer(click.Group):
    """Loads commands lazily, and turns errors that are meant for the user into one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click passes it)
        return import_module(COMMANDS[cmd_name]).command if cmd_name in COMMANDS else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except Exception as error:
            from producer.errors import message_for

            message = message_for(error)
            if message is None:
                raise
            click.echo(f"Error: {message}", err=True)
            ctx.exit(1)


@click.group(cls=Producer, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="specmill", prog_name="producer")
def main() -> None:
    """Run files of prompts through a model, and keep every answer as a row.

    \b
    Example:
      producer submit ./batch_inputs
    """


if __name__ == "__main__":
    main()
