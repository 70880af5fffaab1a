"""Running an engine to the end of its requests, and drafters made for tests."""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from worker.engine import Engine, Failure, FolderModel, Generation, Pair, Request, Sampling
from worker.engine.drafters import Proposal
from worker.engine.rows import Row
from worker.engine.types import Method

GREEDY = Sampling(max_tokens=40)
SEEDED = Sampling(max_tokens=40, temperature=0.6, top_p=0.95, top_k=30, seed=1234)


def make_pair(target: Path, method: Method = "none", draft: Path | None = None, **options: object) -> Pair:
    defaults: dict[str, object] = {"dtype": "float64", "gamma": 4, "max_rows": 8}
    draft_model = FolderModel(draft) if draft else None
    return Pair(FolderModel(target), method, draft_model, **(defaults | options))  # type: ignore[arg-type] # options by name


def make_requests(count: int, sampling: Sampling, longest: int = 60, vocabulary: int = 279) -> list[Request]:
    """Prompts of mixed lengths; half of them repeat themselves, so that lookup has something to find."""
    generator = random.Random(count)
    requests: list[Request] = []
    for index in range(count):
        length = generator.randint(1, longest)
        tokens = [generator.randrange(4, vocabulary) for _ in range(length)]
        if index % 2:
            tokens = (tokens[: max(3, length // 3)] * 4)[:length]
        requests.append(Request(index, tuple(tokens), sampling))
    return requests


def run(engine: Engine, requests: Iterable[Request]) -> dict[object, Generation | Failure]:
    """Results by request id."""
    for request in requests:
        engine.submit(request)
    results: dict[object, Generation | Failure] = {}
    while engine.busy:
        for result in engine.step():
            assert result.request_id not in results
            results[result.request_id] = result
    return results


def generations(engine: Engine, requests: Iterable[Request]) -> dict[object, Generation]:
    """Results by request id, none of which may be a failure."""
    results = run(engine, requests)
    done = {key: result for key, result in results.items() if isinstance(result, Generation)}
    assert done.keys() == results.keys(), [r for r in results.values() if isinstance(r, Failure)]
    return done


def outputs(results: Mapping[object, Generation]) -> dict[object, tuple[tuple[int, ...], str, str]]:
    """What of a sample may not depend on how it was generated."""
    return {key: (g.token_ids, g.text, g.finish_reason) for key, g in results.items()}


class Oracle:
    """Knows what each request will say, and tells it truly until a given place in each proposal."""

    def __init__(self, outputs: Mapping[object, Sequence[int]], true_tokens: Sequence[int]) -> None:
        self._outputs = outputs
        self._true_tokens = true_tokens  # how many of the 1st, 2nd, ... proposal asked for are true; in turn
        self._asked = 0

    def propose(self, rows: Sequence[Row], limits: Sequence[int]) -> list[Proposal]:
        return [self._propose(row, limit) for row, limit in zip(rows, limits, strict=True)]

    def forget(self, row: Row) -> None:
        pass

    def _propose(self, row: Row, limit: int) -> list[int]:
        true = self._true_tokens[self._asked % len(self._true_tokens)]
        self._asked += 1
        coming = list(self._outputs[row.request.id][row.num_output :])[:limit]
        coming += [5] * (limit - len(coming))
        return [token if i < true else (token + 1) % 279 for i, token in enumerate(coming)]
