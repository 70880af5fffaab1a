"""What `worker distill` does: capture, train, evaluate, write."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from worker.bench.prompts import Prompt, read_prompts
from worker.distill.data import Recipe, capture, is_held_out, prompts_crc
from worker.distill.evaluating import Evaluation, drafter_tally, evaluate, likeliest_followers
from worker.distill.preparing import SEED, begin
from worker.distill.shards import Shards
from worker.distill.training import Budget, Trainer
from worker.engine import EngineError
from worker.engine.dspark.checkpoints import save_network
from worker.engine.loading import load_config, name_of
from worker.errors import ConfigurationError
from worker.pairs import to_engine
from worker.wire.pairs import get_pair

_PAUSES = 24  # in a run: tau is measured, and a checkpoint written
_PATIENCE = 8  # pauses without a higher tau that end it
_WATCHED = 64  # held-out responses that tau is measured on meanwhile
_JUDGED = 400  # and at the end


@dataclass(frozen=True)
class Options:
    pair: str
    prompts: Path
    output: Path
    tokens: int
    max_tokens: int
    gamma: int
    draft_vocab: int
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
    learnt = texts.chosen(lambda place: not is_held_out(prompts[place]))
    held_out = texts.chosen(lambda place: is_held_out(prompts[place]))
    _check(learnt, held_out)
    _say(f"learning from {len(learnt):,} responses of {learnt.response_tokens:,} tokens")
    beginning = begin(pair, learnt, recipe.taps, options.gamma, options.draft_vocab)
    trainer = Trainer(
        beginning.network, learnt, learnt.sizes, Budget(options.epochs, 60 * options.minutes), SEED
    )
    _train(trainer, held_out, options.output / "checkpoint.pt")
    save_network(beginning.network, options.output, recipe.target)
    followers = likeliest_followers(beginning.bigrams, beginning.network.token_ids)
    judged = held_out[:_JUDGED]
    kinds = [prompts[text.prompt].kind for text in judged]
    _show(
        evaluate(beginning.network, judged, kinds, followers, sorted({options.gamma, min(3, options.gamma)}))
    )


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
        return trainer.since_best >= _PATIENCE

    if not trainer.progress.taus:
        pause(None)
    trainer.run(pause, _PAUSES)
    trainer.take_best()
    trainer.network.eval()


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


def _show(evaluation: Evaluation) -> None:
    for name in ("drafter", "mixed", "lookup", "bigram"):
        for gamma, tally in getattr(evaluation, name).items():
            rates = " ".join(f"{rate:.2f}" for rate in tally.rates)
            _say(f"{name} gamma {gamma}: tau {tally.tau:.3f} ({rates})")
    for kind, tally in sorted(evaluation.kinds.items()):
        _say(f"  {kind or 'any'}: tau {tally.tau:.2f}")


def _say(progress: str) -> None:
    click.echo(progress, err=True)
