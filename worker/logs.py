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


def configure(who: str) -> None:
    handler = logging.StreamHandler()
    formatter = logging.Formatter(f"%(asctime)sZ %(levelname)s {who}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(_on_one_line)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("specmill").setLevel(logging.INFO)
