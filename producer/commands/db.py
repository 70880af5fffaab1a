"""producer db upgrade"""

import click


@click.group("db")
def command() -> None:
    """The database's tables.

    \b
    Example:
      producer db upgrade
    """


@command.command("upgrade")
def upgrade_command() -> None:
    """Create the tables, or bring them to this version's; harmless where nothing is to be done.

    \b
    Example:
      SPECMILL_DATABASE_URL=postgresql://specmill@db/specmill producer db upgrade
    """
    from db.connect import connect
    from db.explain import describe
    from db.schema import upgrade
    from db.settings import DatabaseSettings
    from producer.console import say
    from producer.database import make_state_folder

    settings = DatabaseSettings()
    if settings.database_url is None:
        make_state_folder(settings)
    engine = connect(settings.url())
    upgrade(engine)
    say(f"{describe(engine.url)} is up to date")
