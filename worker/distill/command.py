"""What `worker distill` does: capture, train, evaluate, write."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from worker.bench.prompts import Prompt, read_prompts
from worker.distill.data import Recipe, capture, prompts_crc
from worker.engine import EngineError
from worker.engine.loading import load_config, name_of
from worker.errors import ConfigurationError
from worker.pairs import to_engine
from worker.wire.pairs import get_pair


@dataclass(frozen=True)
class Options:
    pair: str
    prompts: Path
    output: Path
    tokens: int
    max_tokens: int
    device: str


def distill(options: Options) -> None:
    try:
        _distill(options)
    except EngineError as error:
        raise ConfigurationError(str(error)) from error


def _distill(options: Options) -> None:
    pair = to_engine(get_pair(options.pair), options.device)
    prompts: Sequence[Prompt] = read_prompts(options.prompts)
    config = load_config(pair.target, trust_remote_code=pair.trust_remote_code).get_text_config()
    recipe = Recipe(
        name_of(pair.target),
        taps_for(config.num_hidden_layers),
        options.max_tokens,
        len(prompts),
        prompts_crc(prompts),
    )
    texts = capture(pair, prompts, recipe, options.tokens, options.output / "capture", _say)
    _say(f"{len(texts):,} texts with {texts.response_tokens:,} response tokens")


def taps_for(layers: int) -> tuple[int, ...]:
    """An early one, a middle one, and what goes into the last two; what the last gives out is no feature."""
    if layers < 2:
        raise ConfigurationError("a target of one layer has none that could be tapped: it needs two at least")
    return tuple(sorted({min(1, layers - 2), (layers - 2) // 2, max(layers - 3, 0)}))


def _say(progress: str) -> None:
    click.echo(progress, err=True)
