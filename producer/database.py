"""The database that the settings name, ready to be used."""

from sqlalchemy import Engine

from db.connect import connect
from db.errors import SchemaMismatch
from db.schema import check, upgrade
from db.settings import DatabaseSettings
from producer.errors import ProducerError


def open_database(settings: DatabaseSettings | None = None) -> Engine:
    """The local database is made and migrated as needed, a configured one only by `producer db upgrade`."""
    settings = settings or DatabaseSettings()
    if settings.database_url is not None:
        engine = connect(settings.url())
        check(engine)
        return engine
    make_state_folder(settings)
    engine = connect(settings.url())
    try:
        check(engine)
    except SchemaMismatch:
        upgrade(engine)  # refuses one that is newer
    return engine


def make_state_folder(settings: DatabaseSettings) -> None:
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ProducerError(
            f"the state folder {settings.state_dir} cannot be made: {error.strerror}; "
            "allow it, or name another with SPECMILL_STATE_DIR"
        ) from None
