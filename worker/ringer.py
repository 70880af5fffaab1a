"""Rings for one pair, and survives a broker that is away: the reaper rings again."""

import logging

from celery import Celery

from worker.wire.app import BrokerError
from worker.wire.bells import ring

log = logging.getLogger("specmill.worker")


class Ringer:
    """`ring` from any thread."""

    def __init__(self, app: Celery, pair: str) -> None:
        self._app = app
        self._pair = pair
        self._away = False

    @property
    def is_away(self) -> bool:
        """The broker did not take the last bell."""
        return self._away

    def ring(self, count: int) -> bool:
        """Whether bells are surely waiting in the broker; those of a full window count."""
        try:
            ring(self._app, self._pair, count)
        except BrokerError as error:
            if not self._away:
                log.warning("%s", error)
            self._away = True
            return False
        if self._away:
            log.info("the broker is back")
        self._away = False
        return True
