"""Which prompts are for training and which are held out, and what was captured of them."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

from worker.bench.prompts import Prompt, token_ids
from worker.distill.capturing import CapturingDrafter
from worker.distill.generating import generate
from worker.distill.shards import Shards, ShardWriter
from worker.engine import Engine, Request, Sampling
from worker.engine.types import Pair
from worker.errors import ConfigurationError

_HELD_OUT = 50  # one prompt of so many
_ROWS = 64  # decoded at once: what a CPU is fastest with


@dataclass(frozen=True, slots=True)
class Recipe:
    """What fixes the data; a folder holds that of one recipe."""

    target: str
    taps: tuple[int, ...]
    max_tokens: int
    prompts: int
    prompts_crc: int


def is_held_out(prompt: Prompt) -> bool:
    """By its text alone: the same prompt is held out of every run."""
    return crc32(_text(prompt).encode()) % _HELD_OUT == 0


def prompts_crc(prompts: Sequence[Prompt]) -> int:
    return crc32("\0".join(map(_text, prompts)).encode())


def capture(
    pair: Pair,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    tokens: int,
    folder: Path,
    say: Callable[[str], None],
) -> Shards:
    """The texts of a folder, after prompts it has not seen were run until it has so many response tokens."""
    _check_recipe(recipe, folder)
    known = Shards.read(folder)
    if (missing := tokens - known.response_tokens) > 0 and len(known) < len(prompts):
        seen = set(known.prompts)
        order = [place for place in range(len(prompts)) if place not in seen]
        random.Random(0).shuffle(order)  # a file may be sorted, and its end not be reached
        capturing = CapturingDrafter(recipe.taps)
        engine = Engine(_plain(pair), drafter=capturing)
        sampling = Sampling(max_tokens=recipe.max_tokens)
        requests = (Request(i, token_ids(prompts[i], engine.tokenizer), sampling) for i in order)
        generate(engine, capturing, requests, ShardWriter(folder), missing, say)
    return Shards.read(folder)


def _plain(pair: Pair) -> Pair:
    return replace(pair, method="none", draft=None, max_rows=max(_ROWS, pair.max_rows), baseline_share=0.0)


def _check_recipe(recipe: Recipe, folder: Path) -> None:
    """That the folder is empty, or of this recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.json"
    wanted = json.loads(json.dumps(asdict(recipe)))
    if not file.exists():
        file.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    elif (found := json.loads(file.read_text(encoding="utf-8"))) != wanted:
        differs = ", ".join(f"{key} {found.get(key)!r}" for key in wanted if found.get(key) != wanted[key])
        raise ConfigurationError(
            f"{folder} holds what was captured with {differs}, not with what is asked for now: "
            "name another --output, or repeat the options and prompts it was begun with"
        )


def _text(prompt: Prompt) -> str:
    return json.dumps(prompt.messages, ensure_ascii=False)
