"""What must be right before a model is worth loading; each fault is one line that says what to do."""

import logging
from dataclasses import dataclass

from sqlalchemy import Engine

from db import schema
from db.connect import connect
from db.explain import describe
from db.settings import DatabaseSettings
from worker.errors import ConfigurationError
from worker.spool import Spool
from worker.wire.app import check_broker
from worker.wire.pairs import PairSettings, get_pair
from worker.wire.settings import WireSettings

log = logging.getLogger("specmill.worker")


@dataclass(frozen=True)
class Checked:
    """Settings that were found to work."""

    pair: PairSettings
    broker_url: str
    lease_seconds: float
    db: Engine
    spool: Spool


def check(pair: str) -> Checked:
    """Pair known, broker and database reachable and usable."""
    settings = WireSettings()
    declared = get_pair(pair)
    if settings.broker_url is None:
        raise ConfigurationError(
            "no broker is configured: set SPECMILL_BROKER_URL to a Redis or Valkey server, "
            "such as redis://localhost:6379/0."
        )
    broker_url = settings.broker_url.get_secret_value()
    for warning in check_broker(broker_url):
        log.warning("%s", warning)
    database = DatabaseSettings()
    db = connect(database.url())
    schema.check(db)
    spool = Spool(database.state_dir, describe(db.url))
    return Checked(declared, broker_url, settings.lease_seconds, db, spool)
