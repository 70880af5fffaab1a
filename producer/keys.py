"""Keys that make resubmission idempotent. No library version enters them."""

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from producer.inputs import Item


def _digest(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A path may hold bytes that are no text; they count as they are.
    return hashlib.blake2b(canonical.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def source_key(name: str | None, paths: Sequence[Path], pair_fingerprint: str) -> str:
    """What makes a submission the same one again: its name or its paths, and the pair."""
    if name is not None:
        source: Any = {"name": name}
    elif list(map(str, paths)) == ["-"]:
        source = {"stdin": secrets.token_hex(16)}  # without a name, no two streams are the same source
    else:
        source = {"paths": sorted(os.path.abspath(path) for path in paths)}  # noqa: PTH100 (a link is not its target)
    return _digest([source, pair_fingerprint])


def content_key(item: Item, sampling: dict[str, Any], n: int, pair_fingerprint: str) -> str:
    """What makes a prompt the same one again. `sampling` is the batch's; the item's own goes over it."""
    merged = {**sampling, **item.sampling}
    return _digest([item.messages, item.text, item.chat_template_kwargs, merged, n, pair_fingerprint])
