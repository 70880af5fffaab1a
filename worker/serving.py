"""What one worker process is and serves: fixed from the moment its pair is loaded."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Serving:
    worker_id: str
    pair: str
    tokenizer: PreTrainedTokenizerBase  # the runner's own: a fast tokenizer is not safe in two threads
    defaults: dict[str, Any]  # sampling where neither batch nor prompt says: the model's, then the pair's
    max_rows: int  # rows the engine decodes at once
    slots: int  # bells heard at once
    lease_seconds: float
