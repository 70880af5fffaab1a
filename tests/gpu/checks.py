"""Whether the engine says on a GPU what it says on a CPU, part by part."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch

from tests.gpu.bench import Bench, finish, requests
from tests.gpu.models import build
from worker.engine import Engine, FolderModel, Sampling
from worker.engine.attention import ATTENTION
from worker.engine.cache import Chunk, LayerShape
from worker.engine.cuda import graphs as cuda_graphs
from worker.engine.cuda import varlen
from worker.engine.cuda.gathered import GatheredPass
from worker.engine.cuda.paged import PagedCache
from worker.engine.cuda.varlen import VarlenPass
from worker.engine.loading import load_model
from worker.engine.target import CachedModel

KV_HEADS, GROUP, DIM = 2, 4, 64
TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-5}  # of attention over values of size 1


def models(bench: Bench) -> None:
    build(bench.middle, bench.folder / "middle", bench.device, torch.float32)
    build(bench.large, bench.folder / "large", bench.device, torch.bfloat16)
    if not bench.smoke:
        properties = torch.cuda.get_device_properties(0)
        bench.note(device=properties.name, torch=torch.__version__, cuda=torch.version.cuda)
    weights = sum(path.stat().st_size for path in (bench.folder / "large" / "target").iterdir())
    bench.note(target_gib=weights / 2**30)


def pinning(bench: Bench) -> None:
    """A process pinned by `worker.devices` sees the GPU that the driver's list names, and it alone."""
    from worker.devices import parse
    from worker.gpus import list_gpus

    gpus = list_gpus()
    bench.note(gpus=[(gpu.index, gpu.name, gpu.uuid) for gpu in gpus])
    bench.check(len(gpus) > 0, "NVML lists no GPU")
    ask = "import json, torch; from worker.identity import describe_device as d"
    ask += "; print(json.dumps([torch.cuda.device_count(), *d('cuda:0')]))"
    for index, device in enumerate(parse("all")):
        pinned = {**os.environ, **device.environment}
        answer = subprocess.run([sys.executable, "-c", ask], env=pinned, capture_output=True, text=True)
        bench.check(answer.returncode == 0, f"{device.name}: {answer.stderr[-300:]}")
        if answer.returncode:
            continue
        count, name, uuid = json.loads(answer.stdout)
        bench.note(**{device.name: [device.environment["CUDA_VISIBLE_DEVICES"], count, name, uuid]})
        bench.check(count == 1, f"{device.name} sees {count} GPUs")
        if "CUDA_VISIBLE_DEVICES" not in os.environ:  # else a number there counts as CUDA does
            bench.check((uuid, name) == (gpus[index].uuid, gpus[index].name), f"{device.name} is {uuid}")


@torch.inference_mode()
def attention(bench: Bench) -> None:
    """The kernel over pages against torch's own over gathered ones, in every shape that a pass has."""
    shape = LayerShape(KV_HEADS, DIM, DIM)
    dtype = torch.bfloat16
    cache = PagedCache([shape], 8, 2048, dtype, bench.device)
    exact = PagedCache([shape], 8, 2048, torch.float32, bench.device)
    exact.reads_pages = False
    bench.check(cache.reads_pages, "the kernel refuses bfloat16 here")
    generator = torch.Generator(bench.device).manual_seed(0)
    passes = {
        "prompts": [Chunk(slot, 0, [0] * length, 0) for slot, length in enumerate((1, 300, 700, 31))],
        "decode": [Chunk(slot, end, [0], 0) for slot, end in enumerate((1, 300, 700, 31))],
        "verify": [Chunk(slot, end + 1, [0] * (slot + 2), 0) for slot, end in enumerate((1, 300, 700, 31))],
    }
    for name, chunks in passes.items():
        tokens = sum(len(chunk.token_ids) for chunk in chunks)

        def random(heads: int, tokens: int = tokens) -> torch.Tensor:
            return torch.randn(1, heads, tokens, DIM, generator=generator, device=bench.device).to(dtype)

        query, key, value = random(KV_HEADS * GROUP), random(KV_HEADS), random(KV_HEADS)
        for window in (None, 100):
            for one in (cache, exact):
                one.reserve(chunks)
                one.store.follow(one.pages)
            read = VarlenPass.over(cache.store, chunks).attend(_Layer(), query, key, value, None, window)
            gathered = GatheredPass(exact.store, chunks).attend(
                _Layer(), query.float(), key.float(), value.float(), None, window
            )
            error = (read.float() - gathered).abs().max().item()
            bench.note(**{f"{name}, window {window}": error})
            bench.check(error < TOLERANCE[dtype], f"{name}, window {window}: off by {error}")
    if not bench.smoke:
        _time_splits(bench)


def _time_splits(bench: Bench) -> None:
    """What it costs one long row that its keys are not split over the GPU."""
    for length in (512, 4096, 16384):
        cache = PagedCache([LayerShape(8, 128, 128)], 1, length + 8, torch.bfloat16, bench.device)
        chunks = [Chunk(0, length, [0], 0)]
        cache.reserve(chunks)
        cache.store.follow(cache.pages)
        layout = VarlenPass.over(cache.store, chunks)
        query = torch.randn(1, 16, 1, 128, device=bench.device, dtype=torch.bfloat16)
        key = value = query[:, :8]
        for splits in (1, None):
            varlen._NUM_SPLITS = cast(Any, splits)
            attend = partial(layout.attend, _Layer(), query, key, value, None, None)
            micros = _median_seconds(bench, attend) * 1e6
            bench.note(**{f"us, {length} keys, splits {splits}": micros})
    varlen._NUM_SPLITS = 1


class _Layer(torch.nn.Module):
    layer_idx = 0


def float32(bench: Bench) -> None:
    """Token for token what a CPU says, plain and with a drafter."""
    torch.backends.cuda.matmul.allow_tf32 = False
    count, length, tokens = (3, 20, 6) if bench.smoke else (16, 200, 64)
    greedy = Sampling(max_tokens=tokens)
    seeded = replace(greedy, temperature=0.8, top_p=0.9, seed=7)
    on_cpu = Engine(bench.pair("middle", "none", "float32", "cpu", max_rows=count, context_limit=512))
    for name, sampling in (("greedy", greedy), ("seeded", seeded)):
        wanted = requests(count, length, sampling, 300)
        expected = [result.token_ids for result in finish(on_cpu, wanted)]
        for method in ("none", "draft_model"):
            engine = Engine(bench.pair("middle", method, "float32", max_rows=count, context_limit=512))
            results = finish(engine, wanted)
            same = sum(r.token_ids == tokens for r, tokens in zip(results, expected, strict=True))
            bench.note(**{f"{name}, {method}": f"{same} of {count} the same"})
            bench.check(same == count, f"{name}, {method}: {count - same} of {count} differ")


@torch.inference_mode()
def bfloat16(bench: Bench) -> None:
    """Logits as far from float32's as a CPU's bfloat16 is; and the same from a graph as without one."""
    exact = _model(bench, "float32", "cpu")
    rounded = _model(bench, "bfloat16", "cpu")
    ours = _model(bench, "bfloat16", bench.device)
    prompt = requests(1, 40, Sampling(), 300)[0].token_ids
    passes = [
        [Chunk(slot, 0, prompt[slot:], 1) for slot in range(4)],
        [Chunk(slot, 40 - slot, [5 + slot], 1) for slot in range(4)],
        [Chunk(slot, 41 - slot, [9, 8, 7], 3) for slot in range(4)],
    ]
    for name, chunks in zip(("prompts", "decode", "verify"), passes, strict=True):
        logits = exact.forward(chunks).float()
        size = logits.std()
        cpu_error = ((rounded.forward(chunks).float() - logits).abs().max() / size).item()
        error = ((ours.forward(chunks).float().cpu() - logits).abs().max() / size).item()
        bench.note(**{f"{name}, of their deviation": error, f"{name}, on a CPU": cpu_error})
        bench.check(error < 2 * cpu_error + 0.02, f"{name}: off by {error:.3g}, a CPU by {cpu_error:.3g}")
        if ours._graphs is not None:
            recorded = ours._graphs
            ours._graphs = None
            plain = ours.forward(chunks).float().cpu()
            ours._graphs = recorded
            graph_error = ((ours.forward(chunks).float().cpu() - plain).abs().max() / size).item()
            bench.note(**{f"{name}, graph against none": graph_error})
            bench.check(
                graph_error < 2 * cpu_error + 0.02, f"{name}: a graph changes logits by {graph_error:.3g}"
            )


@torch.inference_mode()
def graphs(bench: Bench) -> None:
    """That passes are recorded, and what they then take."""
    model = _model(bench, "bfloat16", bench.device, "large", max_rows=256)
    recorded = model._graphs
    bench.check(recorded is not None, "no graphs are used")
    for rows, length in ((1, 1), (1, 5), (8, 1), (8, 5), (64, 1), (64, 5), (256, 1)):
        chunks = [Chunk(slot, 100, [slot + 5] * length, length) for slot in range(rows)]
        for name, use in (("graph", recorded), ("without", None)):
            model._graphs = use
            millis = _median_seconds(bench, partial(model.forward, chunks)) * 1e3
            bench.note(**{f"ms, {rows} rows x {length}, {name}": millis})
    sizes = sorted(shape for shape in recorded._graphs) if recorded else []
    bench.note(recorded=sizes, sizes=cuda_graphs.SIZES, gib=torch.cuda.max_memory_reserved() / 2**30)
    bench.check(len(sizes) > 0, "no pass was recorded")


def _model(bench: Bench, dtype: Any, device: str, name: str = "middle", max_rows: int = 4) -> CachedModel:
    source = FolderModel(bench.folder / name / "target")
    loaded = load_model(source, dtype, device, attention=ATTENTION)
    return CachedModel(loaded, max_rows, 512)


def _median_seconds(bench: Bench, work: Any, repeats: int = 20) -> float:
    """Of work whose launches count: each time from an idle device until it is idle again."""
    seconds: list[float] = []
    for _ in range(repeats + 3):
        bench.synchronise()
        began = perf_counter()
        work()
        bench.synchronise()
        seconds.append(perf_counter() - began)
    return median(seconds[3:])
