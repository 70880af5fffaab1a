"""Texts as a target would leave them, and networks to learn from them, random and tiny."""

import torch

from worker.distill.text import Text
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork

VOCAB = 40


def random_text(prompt_tokens: int, response_tokens: int, seed: int = 0, place: int = 0) -> Text:
    """Each response token is the most probable one, as it is where the target was greedy."""
    generator = torch.Generator().manual_seed(seed)
    length = prompt_tokens + response_tokens
    logits = 3 * torch.randn(response_tokens, VOCAB, generator=generator)
    probs, ids = logits.softmax(-1).sort(descending=True)
    prompt = torch.randint(VOCAB, (prompt_tokens,), generator=generator)
    return Text(
        prompt=place,
        tokens=torch.cat([prompt, ids[:, 0]]).to(torch.int32),
        prompt_tokens=prompt_tokens,
        features=torch.randn(length - 1, 32, generator=generator).to(torch.bfloat16),
        top_ids=ids[:, :8].to(torch.int32),
        top_probs=probs[:, :8].half(),
    )


def tiny_network(dtype: torch.dtype = torch.float32, draft_vocab: int = 30, gamma: int = 3) -> DSparkNetwork:
    config = DSparkConfig(
        hidden_size=16,
        intermediate_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=draft_vocab,
        taps=(0, 1),
        block_size=gamma,
        mask_token_id=VOCAB - 1,
        rope_theta=10_000.0,
        markov_rank=6,
        has_confidence=True,
    )
    torch.manual_seed(0)
    network = DSparkNetwork(config)
    network.token_ids.copy_(torch.arange(draft_vocab) + 5)
    network.embed_tokens.weight.requires_grad_(False)
    network.lm_head.weight.requires_grad_(False)
    return network.to(dtype)
