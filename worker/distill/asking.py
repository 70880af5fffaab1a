"""What the target is asked, from a file of prompts or from a batch that was run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from sqlalchemy import Engine as Database

from db import batches
from db.connect import reading
from db.results import ResultRow, results
from worker.bench.prompts import read_prompts
from worker.engine import Engine, Request, Sampling
from worker.engine.errors import PromptError
from worker.engine.text import Message, render
from worker.errors import ConfigurationError
from worker.sampling import effective_seed, resolve, to_engine

_HELD_OUT = 50  # one prompt of so many


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, and how its response is drawn."""

    place: str  # file and line, or the prompt's name in its batch
    prompt: str | Sequence[Message]
    kind: str
    sampling: Sampling
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_held_out(self) -> bool:
        """By its text alone: the same prompt is held out of every run."""
        return crc32(self.text) % _HELD_OUT == 0

    def request(self, place: int, engine: Engine) -> Request:
        try:
            rendered = render(engine.tokenizer, self.prompt, self.chat_template_kwargs)
        except PromptError as error:
            raise ConfigurationError(f"{self.place}: {error}") from None
        return Request(place, rendered.token_ids, self.sampling)

    @property
    def text(self) -> bytes:
        """What tells it from other prompts."""
        return json.dumps(self.prompt, ensure_ascii=False).encode()


def checksum(asks: Sequence[Ask]) -> int:
    """Of the prompts, in their order."""
    return crc32(b"\0".join(ask.text for ask in asks))


def asks_of_file(file: Path, max_tokens: int) -> list[Ask]:
    """Greedy responses to the prompts of a JSONL file, whose rows may name their kind."""
    sampling = Sampling(max_tokens=max_tokens)
    return [Ask(prompt.place, prompt.messages, prompt.kind, sampling) for prompt in read_prompts(file)]


def asks_of_batch(db: Database, reference: str, max_tokens: int) -> list[Ask]:
    """What a batch's successful prompts asked, with their own sampling: a seed gives the same text again."""
    with reading(db) as conn:
        batch = batches.get(conn, reference)
    defaults = batch.sampling_resolved or batch.sampling
    asks = [_ask(row, defaults, batch.seed, max_tokens) for row in results(db, batch.id) if row.samples]
    if not asks:
        raise ConfigurationError(
            f"the batch {batch.id} has no results yet: wait until it has, or name another"
        )
    return asks


def _ask(row: ResultRow, defaults: dict[str, Any], batch_seed: int, max_tokens: int) -> Ask:
    resolved = resolve(defaults, row.sampling)
    resolved |= {"logprobs": None, "max_tokens": min(int(resolved["max_tokens"]), max_tokens)}
    sampling = to_engine(resolved, effective_seed(resolved, batch_seed, row.position))
    prompt = row.text if row.text is not None else cast(list[Message], row.messages or [])
    return Ask(row.custom_id, prompt, "", sampling, row.chat_template_kwargs)
