"""Tokens a second at several numbers of rows, plain and with a drafter, and transformers' own; idle time."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch
from torch.autograd.profiler_util import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from tests.gpu.bench import Bench, finish, requests
from worker.engine import Engine, Generation, Request, Sampling
from worker.engine.types import Method

ROUNDS = 3
PROFILED_STEPS = 20


def rows_of(bench: Bench) -> tuple[int, ...]:
    return (1, 3) if bench.smoke else (1, 8, 64, 256)


def lengths(bench: Bench) -> tuple[int, int]:
    """Tokens of a prompt, and of its output."""
    return (10, 6) if bench.smoke else (128, 128)


def plain(bench: Bench) -> None:
    _measure(bench, "none")


def speculative(bench: Bench) -> None:
    _measure(bench, "draft_model")


def _measure(bench: Bench, method: Method) -> None:
    prompt, output = lengths(bench)
    most = max(rows_of(bench))
    began = perf_counter()
    engine = Engine(bench.pair("large", method, "bfloat16", max_rows=most, context_limit=512))
    bench.note(loaded_in=perf_counter() - began)
    for rows in rows_of(bench):
        greedy = requests(rows, prompt, Sampling(max_tokens=output), 300)
        finish(engine, greedy)  # warms up: graphs, the planner
        speeds: list[float] = []
        results: list[Generation] = []
        for _ in range(ROUNDS):
            if speeds and bench.seconds_left < 15:
                break
            speed, results = _timed(engine, greedy)
            speeds.append(speed)
        bench.note(**{f"tok/s, {rows} rows": median(speeds)})
        if proposed := sum(result.num_draft_tokens for result in results):
            accepted = sum(result.num_accepted_draft_tokens for result in results)
            bench.note(**{f"accepted of {proposed}, {rows} rows": accepted / proposed})
        if not bench.smoke:
            bench.note(**{f"idle share, {rows} rows": _idle_share(engine, rows, prompt, output)})
    sampled = requests(most, prompt, Sampling(max_tokens=output, temperature=1.0, seed=3), 300)
    bench.note(**{f"tok/s, {most} rows, sampled": _timed(engine, sampled)[0]})
    if not bench.smoke:
        bench.note(peak_gib=torch.cuda.max_memory_allocated() / 2**30)


def _timed(engine: Engine, wanted: Sequence[Request]) -> tuple[float, list[Generation]]:
    """Tokens a second, prompts included in the time: none is known from the run before."""
    engine.forget_prompts()
    began = perf_counter()
    results = finish(engine, wanted)
    return sum(result.completion_tokens for result in results) / (perf_counter() - began), results


def _idle_share(engine: Engine, rows: int, prompt: int, output: int) -> float | str:
    """Of the time of some decode steps, how much no kernel ran in."""
    for request in requests(rows, prompt, Sampling(max_tokens=3 * output), 300):  # none ends meanwhile
        engine.submit(request)
    try:
        while engine.num_waiting or not all(row.is_prefilled for row in engine._rows):
            engine.step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            began = perf_counter()
            for _ in range(PROFILED_STEPS):
                engine.step()
            torch.cuda.synchronize()
            seconds = perf_counter() - began
        return 1 - _busy_microseconds(profiler) / 1e6 / seconds
    except Exception as error:  # the profiler is not what is tested
        return f"{type(error).__name__}: {error}"
    finally:
        for index in range(rows):
            engine.cancel(index)


def _busy_microseconds(profiler: profile) -> float:
    """Of the device's events, laid over one another."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in cast(Any, profiler.events())
        if event.device_type == DeviceType.CUDA
    )
    busy = until = 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy


@torch.inference_mode()
def transformers(bench: Bench) -> None:
    """`generate` over the same prompts as one batch; of one length, so that nothing is padding."""
    prompt, output = lengths(bench)
    folder = bench.folder / "large" / "target"
    model = (
        cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)).to(bench.device).eval()
    )
    for rows in rows_of(bench):
        wanted = requests(rows, prompt, Sampling(), 300)
        inputs = torch.tensor([request.token_ids for request in wanted], device=bench.device)
        speeds: list[float] = []
        for round_number in range(ROUNDS):
            if speeds and bench.seconds_left < 20:
                break
            began = perf_counter()
            tokens = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=output if round_number else min(8, output),  # the first warms up
                do_sample=False,
            )
            bench.synchronise()
            seconds = perf_counter() - began
            if round_number:
                speeds.append((tokens.shape[1] - prompt) * rows / seconds)
        bench.note(**{f"tok/s, {rows} rows": median(speeds) if speeds else "no time was left"})
