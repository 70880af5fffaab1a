"""A claimed prompt as what the engine is asked: rendered, its sampling resolved, one request a sample."""

from dataclasses import dataclass

from db.queue import Claimed
from worker.claims import SampleId
from worker.engine.text import render
from worker.engine.types import Request
from worker.sampling import effective_seed, resolve, to_engine
from worker.serving import Serving


@dataclass(frozen=True)
class Prepared:
    rendered: str
    requests: list[Request]


def prepare(claimed: Claimed, serving: Serving) -> Prepared:
    """Raises PromptError for a prompt that no worker could run."""
    prompt = claimed.text if claimed.text is not None else claimed.messages or []
    rendered = render(serving.tokenizer, prompt, claimed.chat_template_kwargs)
    resolved = resolve(serving.defaults, claimed.batch_sampling, claimed.sampling)
    sampling = to_engine(resolved, effective_seed(resolved, claimed.batch_seed, claimed.position))
    requests = [
        Request(
            SampleId(claimed.prompt_id, claimed.attempt, index),
            rendered.token_ids,
            sampling,
            sample_index=index,
            group=claimed.batch_id,
        )
        for index in range(claimed.n)
    ]
    return Prepared(rendered.text, requests)
