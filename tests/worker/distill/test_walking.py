"""Tau as decoding would reach it, and a drafter's proposals as it would make them one by one."""

import random
from collections.abc import Sequence

import pytest
import torch

from tests.worker.distill.texts import random_text, tiny_network
from worker.distill.attending import block_outputs
from worker.distill.batches import make_batch
from worker.distill.evaluating import drafter_tally, evaluate
from worker.distill.walking import proposals_of, walk


def _decode(tokens: Sequence[int], first: int, proposals: dict[int, list[int]]) -> tuple[int, list[int]]:
    """Steps, and how many proposals each accepted, token by token."""
    steps: list[int] = []
    written = list(tokens[: first + 1])
    while len(written) < len(tokens):
        anchor = len(written) - 1
        accepted = 0
        for proposal in proposals[anchor]:
            if len(written) == len(tokens) or proposal != tokens[len(written)]:
                break
            written.append(proposal)
            accepted += 1
        if len(written) < len(tokens):
            written.append(tokens[len(written)])
        steps.append(accepted)
    return len(steps), steps


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_is_decoding(seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(2) for _ in range(60)]
    proposals = {anchor: [rng.randrange(2) for _ in range(4)] for anchor in range(60)}
    tally = walk(tokens, 5, proposals.__getitem__)
    steps, accepted = _decode(tokens, 5, proposals)
    assert tally.steps == steps
    assert tally.tau == pytest.approx(1 + sum(accepted) / steps)
    reached = sum(most >= 1 for most in accepted)
    assert tally.accepted[:2] == [reached, sum(most >= 2 for most in accepted)]
    assert tally.rates[1] == pytest.approx(tally.accepted[1] / tally.tried[1])
    assert tally.tried[0] == steps


def test_a_step_without_proposals_is_a_step() -> None:
    assert walk([1, 2, 3, 4], 0, lambda _: ()).tau == 1.0


def test_proposals_at_all_anchors_are_those_at_each() -> None:
    network, text = tiny_network(torch.float64), random_text(5, 9)
    together = proposals_of(network, text)
    assert len(together) == 8
    for anchor, proposals in enumerate(together, start=5):
        hidden = block_outputs(network, make_batch([text], [[anchor]], 3))[0, 0]
        previous = int(text.tokens[anchor])
        for slot, proposal in enumerate(proposals):
            markov = network.markov_head
            assert markov is not None
            bias, _ = markov(markov.embed(torch.tensor(previous)), hidden[slot], None)
            expected = int(network.token_ids[(network.lm_head(hidden[slot]) + bias).argmax()])
            assert proposal == expected
            previous = expected


def test_an_evaluation_says_what_a_drafter_has_to_beat() -> None:
    network, texts = tiny_network(), [random_text(5, 20, seed=seed) for seed in range(3)]
    tokens = texts[0].tokens.long()
    followers = torch.full((40,), -1)
    followers[tokens[:-1]] = tokens[1:]
    found = evaluate(network, texts, ["a", "a", "b"], followers, [2, 3])
    assert found.drafter[3].tau == drafter_tally(network, texts).tau
    assert found.kinds["a"].steps + found.kinds["b"].steps == found.drafter[3].steps
    assert found.bigram[3].tau > found.bigram[2].tau > 1  # it knows the first text
    assert found.responses == 3
