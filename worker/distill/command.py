"""What `worker distill` does: capture, train, evaluate, write."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from db import schema
from db.connect import connect
from db.settings import DatabaseSettings
from worker.distill.asking import Ask, asks_of_batch, asks_of_file, checksum
from worker.distill.batches import chances
from worker.distill.card import Story, card
from worker.distill.data import Recipe, capture
from worker.distill.evaluating import drafter_tally, evaluate, likeliest_followers
from worker.distill.plot import plot
from worker.distill.preparing import Shape, begin, check, shape_of
from worker.distill.shards import Shards
from worker.distill.speeds import measure_speeds
from worker.distill.training import CONTINUED_RATE, LEARNING_RATE, Budget, Trainer
from worker.engine import EngineError
from worker.engine.dspark.checkpoints import save_network
from worker.engine.loading import load_config, name_of
from worker.errors import ConfigurationError
from worker.pairs import to_engine
from worker.wire.pairs import get_pair

_PAUSES = 24  # in a run: tau is measured, and a checkpoint written
_WATCHED = 64  # held-out responses that tau is measured on meanwhile
_JUDGED = 400  # and at the end
_GAMMA, _DRAFT_VOCAB = 5, 16_384


@dataclass(frozen=True)
class Options:
    """One of `prompts` and `batch` is given."""

    pair: str
    prompts: Path | None
    batch: str | None
    output: Path
    tokens: int
    max_tokens: int
    gamma: int | None
    draft_vocab: int | None
    begin_from: Path | None  # a drafter, whose gamma it then keeps
    epochs: float
    minutes: float
    device: str


def distill(options: Options) -> None:
    try:
        _distill(options)
    except EngineError as error:
        raise ConfigurationError(str(error)) from error


def _distill(options: Options) -> None:
    pair = to_engine(get_pair(options.pair), options.device)
    asks = _asks(options)
    config = load_config(pair.target, trust_remote_code=pair.trust_remote_code).get_text_config()
    shape = _shape(options, config.num_hidden_layers)
    check(pair, options.begin_from)
    recipe = Recipe(name_of(pair.target), shape.taps, options.max_tokens, len(asks), checksum(asks))
    texts = capture(pair, asks, recipe, options.tokens, options.output / "capture", _say)
    learnt = texts.chosen(lambda place: not asks[place].is_held_out)
    held_out = texts.chosen(lambda place: asks[place].is_held_out)
    _check(learnt, held_out)
    _say(f"learning from {len(learnt):,} responses of {learnt.response_tokens:,} tokens")
    beginning = begin(pair, learnt, shape, options.begin_from)
    network = beginning.network
    budget = Budget(options.epochs, 60 * options.minutes)
    rate = LEARNING_RATE if options.begin_from is None else CONTINUED_RATE
    where = [chances(text) for text in learnt.without_features()]
    trainer = Trainer(network, learnt, where, budget, beginning.seed, rate)
    _train(trainer, held_out, options.output / "checkpoint.pt")
    save_network(network, options.output, recipe.target)
    followers = likeliest_followers(beginning.bigrams, network.token_ids.cpu())
    judged = held_out[:_JUDGED]
    kinds = [asks[text.prompt].kind for text in judged]
    evaluation = evaluate(network, judged, kinds, followers, sorted({shape.gamma, min(3, shape.gamma)}))
    unseen = [asks[place] for place in held_out.prompts]
    speeds = measure_speeds(pair, options.output, shape.gamma, unseen, _say)
    source = str(options.prompts.name if options.prompts else f"the batch {options.batch}")
    story = Story(
        network.config,
        recipe.target,
        source,
        learnt,
        trainer.progress,
        beginning.seed,
        str(options.begin_from) if options.begin_from else None,
        rate,
        evaluation,
        speeds,
    )
    text = card(story)
    (options.output / "README.md").write_text(text, encoding="utf-8")
    if find_spec("matplotlib") is None:
        _say("no plot was drawn: it needs matplotlib, pip install 'specmill[bench]'")
    else:
        plot(recipe.target, trainer.progress, evaluation, options.output / "training.png")
    click.echo(text)


def _asks(options: Options) -> Sequence[Ask]:
    if options.prompts is not None:
        return asks_of_file(options.prompts, options.max_tokens)
    db = connect(DatabaseSettings().url())
    schema.check(db)
    return asks_of_batch(db, options.batch or "", options.max_tokens)


def _shape(options: Options, layers: int) -> Shape:
    if options.begin_from is None:
        return Shape(taps_for(layers), options.gamma or _GAMMA, options.draft_vocab or _DRAFT_VOCAB)
    if options.gamma is not None:
        raise ConfigurationError("--gamma is of a new drafter: with --begin-from it keeps what it has")
    return shape_of(options.begin_from, options.draft_vocab)


def _train(trainer: Trainer, held_out: Shards, checkpoint: Path) -> None:
    watched = held_out[:_WATCHED]
    if checkpoint.exists():
        trainer.load(checkpoint)
        _say(f"continuing after {trainer.progress.step:,} steps")

    def pause(loss: float | None) -> bool:
        trainer.network.eval()
        tally = drafter_tally(trainer.network, watched)
        trainer.note(tally.tau)
        trainer.save(checkpoint)
        progress = trainer.progress
        left = progress.seconds * (1 / trainer.share - 1) if trainer.share else None
        _say(
            f"train: {progress.anchors:,} anchors{'' if loss is None else f', loss {loss:.3f}'}, "
            f"tau {tally.tau:.3f} ({' '.join(f'{rate:.2f}' for rate in tally.rates)})"
            f"{'' if left is None else f', {left / 60:.0f} min left'}"
        )
        return trainer.is_stuck

    if not trainer.progress.taus:
        pause(None)
    trainer.run(pause, _PAUSES)
    trainer.network.eval()
    others = held_out[_WATCHED : _WATCHED + _JUDGED] or watched
    trainer.take_best(lambda: drafter_tally(trainer.network, others).tau)


def taps_for(layers: int) -> tuple[int, ...]:
    """An early one, a middle one, and what goes into the last two; what the last gives out is no feature."""
    if layers < 2:
        raise ConfigurationError("a target of one layer has none that could be tapped: it needs two at least")
    return tuple(sorted({min(1, layers - 2), (layers - 2) // 2, max(layers - 3, 0)}))


def _check(learnt: Shards, held_out: Shards) -> None:
    if not len(learnt) or not len(held_out):
        raise ConfigurationError(
            f"{len(learnt)} responses are to learn from and {len(held_out)} are held out to measure on: "
            "both need some. Give more prompts, or a larger --tokens; one prompt of 50 is held out"
        )


def _say(progress: str) -> None:
    click.echo(progress, err=True)
