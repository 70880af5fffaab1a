"""The engine's greedy tokens are those of transformers' own generate."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worker.engine.running import GREEDY, generations, make_pair, make_requests
from tests.worker.engine.tiny import Kind, tiny_model, tiny_tokenizer
from worker.engine import Engine, EngineError, FolderModel, Pair, Sampling
from worker.engine.types import Method

Folders = Callable[[Kind], Path]


def generated(model: Any, prompt: Sequence[int], eos_ids: frozenset[int], max_tokens: int) -> tuple[int, ...]:
    """What transformers generates after a prompt."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=sorted(eos_ids),
    )
    return tuple(cast(list[int], output[0, len(prompt) :].tolist()))


@pytest.mark.parametrize("method", ["none", "prompt_lookup", "draft_model"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_greedy_equals_transformers_generate(
    kind: Kind, method: Method, target_folder: Folders, draft_folder: Folders
):
    engine = Engine(make_pair(target_folder(kind), method, draft_folder(kind)))
    reference = AutoModelForCausalLM.from_pretrained(target_folder(kind), dtype=torch.float64)
    requests = make_requests(8, GREEDY)

    results = generations(engine, requests)

    for request in requests:
        expected = generated(reference, request.token_ids, engine.eos_ids, GREEDY.max_tokens)
        assert results[request.id].token_ids == expected


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_prompt_prefilled_in_chunks_says_the_same(
    kind: Kind, target_folder: Folders, draft_folder: Folders, monkeypatch: pytest.MonkeyPatch
):
    requests = make_requests(6, GREEDY, longest=150)
    whole = generations(Engine(make_pair(target_folder(kind))), requests)

    monkeypatch.setattr("worker.engine.engine.PREFILL_TOKENS", 41)
    monkeypatch.setattr("worker.engine.drafters.draft_model._PREFILL_TOKENS", 41)
    chunked = generations(Engine(make_pair(target_folder(kind), "draft_model", draft_folder(kind))), requests)

    assert max(len(request.token_ids) for request in requests) > 3 * 41
    assert {k: g.token_ids for k, g in chunked.items()} == {k: g.token_ids for k, g in whole.items()}


def test_generate_takes_messages_user_texts_and_raw_text(target_folder: Folders):
    engine = Engine(Pair(FolderModel(target_folder("llama")), dtype="float64"))
    sampling = Sampling(max_tokens=8)

    text, messages = engine.generate(["hello", [{"role": "user", "content": "hello"}]], sampling)
    [raw] = engine.generate(["<bos>user: hello<end>\nassistant: "], sampling, raw=True)

    assert text.token_ids == messages.token_ids == raw.token_ids
    assert text.prompt_tokens == raw.prompt_tokens


def test_generate_names_the_prompt_that_cannot_run(target_folder: Folders):
    engine = Engine(make_pair(target_folder("llama"), context_limit=20))

    with pytest.raises(EngineError, match=r"prompt 1 failed: the prompt has 30 tokens.* context of 20"):
        engine.generate(["ab", "x" * 30], Sampling(max_tokens=2), raw=True)
    assert not engine.busy


def test_the_model_s_own_sampling_defaults_are_known(target_folder: Folders, tmp_path: Path):
    model = tiny_model()
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)

    assert Engine(make_pair(tmp_path)).generation_defaults == {"temperature": 0.6, "top_p": 0.9}
    assert Engine(make_pair(target_folder("llama"))).generation_defaults == {"temperature": 0.0}
