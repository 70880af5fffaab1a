"""What was captured of a target's responses, and what is captured now because it is missing."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from worker.distill.asking import Ask
from worker.distill.capturing import CapturingDrafter
from worker.distill.generating import generate
from worker.distill.shards import Shards, ShardWriter
from worker.engine import Engine
from worker.engine.types import Pair
from worker.errors import ConfigurationError

_ROWS = 64  # decoded at once: what a CPU is fastest with


@dataclass(frozen=True, slots=True)
class Recipe:
    """What fixes the data; a folder holds that of one recipe."""

    target: str
    taps: tuple[int, ...]
    max_tokens: int
    prompts: int
    prompts_crc: int


def capture(
    pair: Pair, asks: Sequence[Ask], recipe: Recipe, tokens: int, folder: Path, say: Callable[[str], None]
) -> Shards:
    """The texts of a folder, after prompts it has not seen were run until it has so many response tokens."""
    _check_recipe(recipe, folder)
    known = Shards.read(folder)
    if (missing := tokens - known.response_tokens) > 0 and len(known) < len(asks):
        seen = set(known.prompts)
        order = [place for place in range(len(asks)) if place not in seen]
        random.Random(0).shuffle(order)  # a file may be sorted, and its end not be reached
        capturing = CapturingDrafter(recipe.taps)
        engine = Engine(_plain(pair), drafter=capturing)
        requests = (asks[place].request(place, engine) for place in order)
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
