"""A block sees its own tokens and what precedes its anchor: neither the future nor its neighbours."""

from dataclasses import replace

import pytest
import torch

from tests.worker.distill.texts import random_text, tiny_network
from worker.distill.attending import block_outputs
from worker.distill.batches import make_batch

_TEXTS = (random_text(4, 12, seed=1), random_text(7, 6, seed=2))
_ANCHORS = ((4, 6, 9, 14), (8, 11))


def test_anchors_together_are_as_each_alone() -> None:
    network = tiny_network(torch.float64)
    together = block_outputs(network, make_batch(_TEXTS, _ANCHORS, 3))
    for i, (text, anchors) in enumerate(zip(_TEXTS, _ANCHORS, strict=True)):
        for j, anchor in enumerate(anchors):
            alone = block_outputs(network, make_batch([text], [[anchor]], 3))
            torch.testing.assert_close(together[i, j], alone[0, 0])


def test_in_16_bits_it_is_the_same_but_for_rounding() -> None:
    batch = make_batch(_TEXTS, _ANCHORS, 3)
    exact, ours = (block_outputs(tiny_network(dtype), batch) for dtype in (torch.float64, torch.bfloat16))
    seen = batch.seen > 0
    assert ours.dtype == torch.bfloat16
    error = (ours.double() - exact)[seen].square().mean().sqrt()
    assert error < 0.02 * exact[seen].square().mean().sqrt()


@pytest.mark.parametrize("anchor", [4, 9])
def test_what_comes_later_changes_nothing(anchor: int) -> None:
    network, text = tiny_network(torch.float64), _TEXTS[0]
    other = replace(text, tokens=text.tokens.clone(), features=text.features.clone())
    other.tokens[anchor + 1 :] = 3
    other.features[anchor:] = 1.0
    ours, changed = (
        block_outputs(network, make_batch([one], [[anchor, 14]], 3))[0, 0] for one in (text, other)
    )
    assert torch.equal(ours, changed)


def test_what_precedes_the_anchor_counts() -> None:
    network, text = tiny_network(torch.float64), _TEXTS[0]
    ours = block_outputs(network, make_batch([text], [[9]], 3))
    for changed in (0, 8):
        other = replace(text, features=text.features.clone())
        other.features[changed] += 1
        assert not torch.equal(ours, block_outputs(network, make_batch([other], [[9]], 3)))


def test_slots_carry_their_tokens_and_distributions() -> None:
    text = _TEXTS[0]
    batch = make_batch([text], [[4, 14]], 3)
    tokens = text.tokens.tolist()
    assert batch.inputs.tolist() == [[tokens[4], tokens[14]]]
    assert batch.tokens.tolist() == [[tokens[5:8], [tokens[15], -1, -1]]]
    assert batch.previous[0, 0].tolist() == tokens[4:7]
    assert torch.equal(batch.top_ids[0, 0], text.top_ids[1:4].long())
    assert batch.top_ids[0, 1, 0, 0] == tokens[15]  # the most probable one, as the text is greedy
