"""The model card: what a drafter was made of, what it reaches, and where it does not help."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from worker.distill.evaluating import Evaluation
from worker.distill.shards import Shards
from worker.distill.speeds import Speed
from worker.distill.training import Progress
from worker.distill.walking import Tally
from worker.engine.dspark.config import DSparkConfig

_FEW = 20  # steps: a kind with fewer says nothing


@dataclass(frozen=True, slots=True)
class Story:
    """All that a card tells."""

    config: DSparkConfig
    target: str
    source: str  # of the prompts
    learnt: Shards
    progress: Progress
    seed: int
    begun_from: str | None  # the drafter that it was before
    learning_rate: float
    evaluation: Evaluation
    speeds: Sequence[Speed]


def card(story: Story) -> str:
    return "\n".join(_lines(story)) + "\n"


def _lines(story: Story) -> Iterator[str]:
    config, progress, evaluation = story.config, story.progress, story.evaluation
    gamma = config.block_size
    yield f"# A DSpark drafter for {story.target}"
    yield ""
    yield f"Proposes up to {gamma} tokens in one pass, from features of the target (arXiv 2607.05147)."
    yield "It changes no output, only how fast it comes. Trained by `worker distill` of Specmill."
    yield "As a pair's draft:"
    yield ""
    yield "```toml"
    yield 'method = "dspark"'
    yield 'draft = { folder = "..." }'
    yield f"gamma = {gamma}"
    yield "```"
    yield ""
    yield "## Data and recipe"
    yield ""
    yield f"- {len(story.learnt):,} prompts from {story.source}, answered by the target itself:"
    yield f"  {story.learnt.response_tokens:,} response tokens. One prompt of 50 was held out."
    yield f"- {config.num_layers} layers of width {config.hidden_size} that tap {list(config.taps)},"
    yield f"  a vanilla Markov head of rank {config.markov_rank}, a confidence head."
    yield f"- {config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens can be proposed."
    yield "  Embeddings and head are the target's own."
    if story.begun_from is not None:
        yield f"- Begun as the drafter {story.begun_from}."
    else:
        yield "- Begun as the target's last layers; the Markov head from the bigrams' mutual information;"
        yield "  what goes into a block by least squares."
    yield "- Loss: 0.5 CE + 0.5 L1, then 0.1 and 0.9, and that of the confidence."
    yield "  Slots weigh exp(-(k - 1) / 4)."
    yield f"- AdamW {story.learning_rate:g}, warm-up 4%, cosine, clip 1.0."
    minutes = progress.seconds / 60
    yield f"- {progress.step:,} steps with {progress.anchors:,} anchors in {minutes:.0f} minutes."
    yield "  Anchors are drawn as decoding comes to them: mostly tokens that the target was unsure of."
    yield f"  Seed {story.seed}."
    yield ""
    yield "## Acceptance"
    yield ""
    yield f"Tokens a step on {evaluation.responses} held-out responses, walked as decoding would."
    yield "By position: how often a proposal is accepted if those before it were."
    yield "Mixed: what followed the last three tokens before, where they recur, else the drafter."
    yield ""
    yield "| method | proposals | tokens a step | by position |"
    yield "|---|---|---|---|"
    for name in ("drafter", "mixed", "lookup", "bigram"):
        tallies: Mapping[int, Tally] = getattr(evaluation, name)
        for most, tally in sorted(tallies.items(), reverse=True):
            rates = " ".join(f"{rate:.2f}" for rate in tally.rates)
            yield f"| {_NAMES[name]} | {most} | {tally.tau:.2f} | {rates} |"
    yield ""
    yield from _speeds(story.speeds)
    yield "## Where it does not help"
    yield ""
    yield "- With many rows at once a step is bound by its products, and the planner turns drafting off."
    yield "- Far from the prompts above less is accepted; tokens beyond its vocabulary never are."
    kinds = {kind: tally for kind, tally in evaluation.kinds.items() if kind and tally.steps >= _FEW}
    if kinds:
        ranked = sorted(kinds, key=lambda kind: kinds[kind].tau)
        yield f"- Least, of the kinds held out: {_named(ranked[:8], kinds)}."
        yield f"  Most: {_named(ranked[-8:][::-1], kinds)}."


_NAMES = {
    "drafter": "this drafter",
    "mixed": "mixed",
    "lookup": "prompt lookup alone",
    "bigram": "likeliest bigrams alone",
}


def _speeds(speeds: Sequence[Speed]) -> Iterator[str]:
    if not speeds:
        return
    yield "## By the clock"
    yield ""
    yield "On held-out prompts, as the planner runs the pair, against plain decoding in the same rounds."
    yield ""
    yield "| rows | plain, tok/s | with the drafter, tok/s | speed-up | 95% |"
    yield "|---|---|---|---|---|"
    for speed in speeds:
        plain, drafted = speed.plain, speed.drafted
        yield (
            f"| {speed.rows_in_flight} | {plain.tokens_per_second:,.0f} | {drafted.tokens_per_second:,.0f} "
            f"| {drafted.speedup:.2f}x | {drafted.speedup_low:.2f}-{drafted.speedup_high:.2f} |"
        )
    yield ""


def _named(kinds: Sequence[str], tallies: Mapping[str, Tally]) -> str:
    return ", ".join(f"{kind} {tallies[kind].tau:.2f}" for kind in kinds)
