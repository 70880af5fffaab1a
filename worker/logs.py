"""Log lines of the worker: one line an event, on standard error, in UTC."""

import logging
import time

from redis import RedisError


def _on_one_line(record: logging.LogRecord) -> bool:
    """A broker that is away is a line, too; only what nobody foresaw keeps its traceback."""
    message = record.getMessage()
    if record.exc_info and isinstance(record.exc_info[1], OSError | RedisError):
        message = f"{message}: {record.exc_info[1]}"
        record.exc_info = None
    record.msg, record.args = " ".join(message.split()), ()
    return True


class _OncePerOutage:
    """Celery says at each try that it cannot connect; that the connection was lost, it says once."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.name.startswith("celery.") and "Cannot connect to" in message:
            said, self._said = self._said, True
            return not said
        if "Connection to broker lost" in message:
            self._said = True
        return True


def configure(who: str) -> None:
    handler = logging.StreamHandler()
    formatter = logging.Formatter(f"%(asctime)sZ %(levelname)s {who}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(_OncePerOutage())
    handler.addFilter(_on_one_line)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("specmill").setLevel(logging.INFO)
