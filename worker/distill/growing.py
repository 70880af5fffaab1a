"""A drafter that has learnt gets more tokens to propose; what it knows of the others stays."""

from dataclasses import replace

import torch
from torch import Tensor

from worker.distill.vocabulary import fitted_w2
from worker.engine.dspark.checkpoints import TargetFacts
from worker.engine.dspark.network import DSparkNetwork


def grow(network: DSparkNetwork, draft_ids: Tensor, bigrams: Tensor, facts: TargetFacts) -> DSparkNetwork:
    """The network with a larger draft vocabulary, ascending, that holds its own.

    `bigrams` [V, V_d] are of the larger one: what a new token follows is fitted to what the network
    has learnt of the tokens before it.
    """
    grown = DSparkNetwork(replace(network.config, draft_vocab_size=len(draft_ids)))
    grown.token_ids.copy_(draft_ids)
    sized = ("embed_tokens.weight", "lm_head.weight", "markov_head.markov_w2.weight")
    kept = {name: tensor for name, tensor in network.state_dict().items() if name not in sized}
    grown.load_state_dict(kept, strict=False)
    grown.use_tokens_of(facts.embeddings, facts.head)
    if grown.markov_head is not None and network.markov_head is not None:
        w2 = fitted_w2(bigrams, network.markov_head.markov_w1.weight.detach())
        w2[torch.searchsorted(draft_ids, network.token_ids)] = network.markov_head.markov_w2.weight.detach()
        with torch.no_grad():
            grown.markov_head.markov_w2.weight.copy_(w2)
    return grown
