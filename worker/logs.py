"""Log lines of the worker: one line an event, on standard error, in UTC."""

import logging
import time


def configure(who: str) -> None:
    handler = logging.StreamHandler()
    formatter = logging.Formatter(f"%(asctime)sZ %(levelname)s {who}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("specmill").setLevel(logging.INFO)
