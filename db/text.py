"""Text as every database can hold it."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """PostgreSQL holds no NUL and UTF-8 no half of a surrogate pair: a model may emit either."""
    return _UNSTORABLE.sub(REPLACEMENT, text)
