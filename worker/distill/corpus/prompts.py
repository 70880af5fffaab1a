"""Prompts to train a drafter on: templates of many kinds, filled with words, numbers and passages."""

import random
import re
from functools import cache
from importlib.resources import files

from worker.distill import corpus

_BLOCKS = frozenset(
    {"bug", "passage", "record", "snippet", "template"}
)  # lists whose items have several lines
_SLOT = re.compile(r"\{(?:(?P<low>\d+)-(?P<high>\d+)|(?P<word>[A-Za-z]+)\d?)\}")
_TITLE = re.compile(r"# (.*?)(?: x(\d+))?$")
_REPEATS = 50  # this many known prompts in a row, and a kind counts as used up


def training_prompts(count: int, seed: int) -> list[str]:
    """`count` distinct prompts in rounds over all kinds, the same for a seed.

    What people ask most comes several times a round. A kind with few prompts leaves the rounds once they
    are used. Raises ValueError where all are.
    """
    rng = random.Random(seed)
    kinds, times = template_kinds(), _times_a_round()
    prompts: dict[str, None] = {}
    open_kinds = [kind for kind in kinds for _ in range(times.get(kind, 1))]
    while len(prompts) < count:
        if not open_kinds:
            raise ValueError(f"the templates make {len(prompts)} distinct prompts, fewer than {count}")
        rng.shuffle(open_kinds)
        for kind in tuple(open_kinds):
            drawn = (_filled(rng.choice(kinds[kind]), rng) for _ in range(_REPEATS))
            new = next((prompt for prompt in drawn if prompt not in prompts), None)
            if new is None:
                open_kinds.remove(kind)  # one of its times
            else:
                prompts[new] = None
    return list(prompts)[:count]


@cache
def template_kinds() -> dict[str, tuple[str, ...]]:
    """The templates of each kind; a literal `\\n` in the file is a line break of the prompt."""
    blocks = (block.split("\n") for block in items("template"))
    return {
        _TITLE.sub(r"\1", title): tuple(line.replace(r"\n", "\n") for line in lines)
        for title, *lines in blocks
    }


@cache
def _times_a_round() -> dict[str, int]:
    """Of the kinds whose titles say it, as in `# some facts x24`; others come once."""
    titles = (_TITLE.fullmatch(block.split("\n", 1)[0]) for block in items("template"))
    return {title[1]: int(title[2]) for title in titles if title and title[2]}


@cache
def items(name: str) -> tuple[str, ...]:
    """The items of `NAME.txt`: its lines, or its blocks where they have several lines."""
    text = files(corpus).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip("\n")
    return tuple(text.split("\n\n" if name in _BLOCKS else "\n"))


def _filled(template: str, rng: random.Random) -> str:
    """The template with an item in each slot.

    `{3-9}` is a new number at each place. `{name}` is the same item at each place, `{name2}` another one;
    `{Name}` begins with a capital letter.
    """
    values: dict[str, str] = {}

    def value(slot: re.Match[str]) -> str:
        if slot["low"]:
            return str(rng.randint(int(slot["low"]), int(slot["high"])))
        key, word = slot[0].lower(), slot["word"]
        if key not in values:
            unused = [item for item in items(word.lower()) if item not in values.values()]
            values[key] = rng.choice(unused)
        chosen = values[key]
        return chosen[:1].upper() + chosen[1:] if word[0].isupper() else chosen

    return _SLOT.sub(value, template)
