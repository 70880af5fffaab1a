"""What responses say of tokens: the frequent ones, and what follows what."""

from dataclasses import replace

import torch

from tests.worker.distill.texts import VOCAB, random_text
from worker.distill.evaluating import likeliest_followers
from worker.distill.text import Text
from worker.distill.vocabulary import bigram_counts, draft_vocabulary, fitted_w2, markov_factors


def _alternating() -> Text:
    """After 3 comes 7 surely, after 7 mostly 3 and sometimes 9."""
    text = random_text(2, 8)
    text.tokens[1:] = torch.tensor([3, 7] * 4 + [3])
    ids = torch.tensor([[7, 1], [3, 9]] * 4)
    probs = torch.tensor([[1.0, 0.0], [0.75, 0.25]] * 4).half()
    return replace(text, top_ids=ids.int(), top_probs=probs)


def test_expected_tokens_are_drafted() -> None:
    assert draft_vocabulary([_alternating()], VOCAB, 3).tolist() == [3, 7, 9]
    assert draft_vocabulary([_alternating()], VOCAB, 5).tolist() == [0, 1, 3, 7, 9]


def test_kept_tokens_are_drafted_however_rare() -> None:
    kept = torch.tensor([20, 30])
    assert draft_vocabulary([_alternating()], VOCAB, 4, kept).tolist() == [3, 7, 20, 30]


def test_bigrams_count_by_probability() -> None:
    draft_ids = torch.tensor([3, 7, 9])
    counts = bigram_counts([_alternating()], draft_ids, VOCAB).to_dense()
    assert counts[3].tolist() == [0, 4, 0]
    assert counts[7].tolist() == [3, 0, 1]
    assert counts.sum() == 8


def test_the_likeliest_follower() -> None:
    draft_ids = torch.tensor([3, 7, 9])
    followers = likeliest_followers(bigram_counts([_alternating()], draft_ids, VOCAB), draft_ids)
    assert followers[3] == 7
    assert followers[7] == 3
    assert followers[5] == -1


def test_factors_of_full_rank_are_the_mutual_information() -> None:
    texts = [random_text(4, 60, seed=seed) for seed in range(4)]
    draft_ids = torch.arange(VOCAB)
    counts = bigram_counts(texts, draft_ids, VOCAB)
    w1, w2 = markov_factors(counts, VOCAB, seed=0)
    dense = counts.to_dense()
    expected = dense * dense.sum() / (dense.sum(1, keepdim=True) * dense.sum(0))
    expected = torch.where(dense > 0, expected.log().clamp(min=0) * dense / (dense + 1), 0)
    torch.testing.assert_close(w1 @ w2.t(), expected, rtol=1e-3, atol=1e-3)


def test_a_factor_is_fitted_to_the_other() -> None:
    """Where the other one spans all there is, the product is what the two would have been made for."""
    texts = [random_text(4, 60, seed=seed) for seed in range(4)]
    counts = bigram_counts(texts, torch.arange(VOCAB), VOCAB)
    w1, w2 = markov_factors(counts, VOCAB, seed=0)
    turned = w1 @ torch.linalg.qr(torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))).Q
    torch.testing.assert_close(turned @ fitted_w2(counts, turned).t(), w1 @ w2.t(), rtol=0.05, atol=0.05)


def test_what_rounds_to_nothing_is_no_bigram() -> None:
    """It would be divided by: nothing else may lead to that token."""
    counts = bigram_counts([_alternating()], torch.tensor([1, 3, 7, 9]), VOCAB)
    assert all(factor.isfinite().all() for factor in markov_factors(counts, 2, seed=0))


def test_a_rank_beyond_the_matrix_is_filled_up() -> None:
    counts = bigram_counts([_alternating()], torch.tensor([3, 7, 9]), VOCAB)
    w1, w2 = markov_factors(counts, 6, seed=0)
    assert w1.shape == (VOCAB, 6)
    assert w2.shape == (3, 6)


def test_of_many_followers_the_most_frequent_is_the_likeliest() -> None:
    """So many that torch writes them by several threads, in no order."""
    counts = torch.rand(40, 3000, generator=torch.Generator().manual_seed(1))
    counts[7] = 0
    draft_ids = torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:3000]
    right = draft_ids[counts.argmax(dim=1)]
    right[7] = -1
    assert torch.equal(likeliest_followers(counts.to_sparse(), draft_ids), right)
