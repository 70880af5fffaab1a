"""The planner of a pair, with the costs of its target."""

from functools import partial

import torch

from worker.engine.cache import Chunk
from worker.engine.planner.adaptive import AdaptivePlanner
from worker.engine.planner.confidence import CalibratedConfidence
from worker.engine.planner.profiling import ROWS, ROWS_OF_GPU, profile, profiled_shapes
from worker.engine.planner.protocol import Planner, VerifyAll
from worker.engine.target import CachedModel
from worker.engine.types import Pair

_CONTEXT = 128  # tokens before a profiled block


def make_planner(pair: Pair, target: CachedModel) -> Planner:
    if pair.method == "none":
        return VerifyAll(pair.gamma)  # of nothing
    if pair.method == "dspark":
        planner = AdaptivePlanner(pair.gamma, CalibratedConfidence(pair.gamma), in_blocks=True)
    else:
        planner = AdaptivePlanner(pair.gamma)
    if pair.dtype != "float64":  # a dtype for proofs on tiny models: what their steps tell is enough
        end = min(_CONTEXT + 1 + pair.gamma, target.context_limit)
        rows = pair.max_rows
        while rows > 1 and not target.cache.fits(dict.fromkeys(range(rows), end)):
            rows //= 2
        shapes = profiled_shapes(rows, pair.gamma, ROWS_OF_GPU if target.records_passes else ROWS)
        run_pass = partial(_run_pass, target)
        if target.records_passes:
            for shape in shapes:
                run_pass(*shape)  # recording it takes as long as many passes
        planner.costs.profile(profile(run_pass, shapes))
        for slot in range(rows):
            target.cache.free(slot)
    return planner


@torch.inference_mode()
def _run_pass(target: CachedModel, rows: int, verified: int) -> None:
    """A verify pass over slots that no row has yet."""
    chunks: list[Chunk] = []
    for slot in range(rows):
        tokens = [0] * (verified // rows + (slot < verified % rows))
        start = max(0, min(_CONTEXT, target.context_limit - len(tokens)))
        chunks.append(Chunk(slot, start, tokens, num_logits=len(tokens)))
    target.forward(chunks).argmax(dim=-1).tolist()
