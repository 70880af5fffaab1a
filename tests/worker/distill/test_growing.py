"""A larger draft vocabulary: what was known stays, what is new is fitted to it."""

import torch

from tests.worker.distill.texts import VOCAB, random_text, tiny_network
from worker.distill.growing import grow
from worker.distill.vocabulary import bigram_counts, fitted_w2
from worker.engine.dspark.checkpoints import TargetFacts
from worker.engine.dspark.heads import MarkovHead


def test_a_grown_drafter_thinks_of_its_tokens_as_before() -> None:
    network = tiny_network(draft_vocab=20)  # tokens 5 to 24
    draft_ids = torch.cat([torch.tensor([1, 3]), torch.arange(5, 25), torch.tensor([30])])
    head = torch.randn(VOCAB, 16, generator=torch.Generator().manual_seed(3))
    facts = TargetFacts("tiny", 16, 2, network.embed_tokens.weight, head)
    network.use_tokens_of(facts.embeddings, facts.head)
    bigrams = bigram_counts([random_text(4, 60, seed=seed) for seed in range(3)], draft_ids, VOCAB)

    grown = grow(network, draft_ids, bigrams, facts)

    assert torch.equal(grown.token_ids, draft_ids)
    assert grown.config.draft_vocab_size == len(draft_ids)
    assert torch.equal(grown.lm_head.weight, head[draft_ids])
    assert torch.equal(grown.embed_tokens.weight, network.embed_tokens.weight)
    others = {"lm_head.weight", "markov_head.markov_w2.weight"}
    before, after = network.state_dict(), grown.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - others)
    old, new = network.markov_head, grown.markov_head
    assert isinstance(old, MarkovHead)
    assert isinstance(new, MarkovHead)
    assert torch.equal(new.markov_w2.weight[2:22], old.markov_w2.weight)
    fitted = fitted_w2(bigrams, old.markov_w1.weight)
    assert torch.equal(new.markov_w2.weight[[0, 1, 22]], fitted[[0, 1, 22]])
