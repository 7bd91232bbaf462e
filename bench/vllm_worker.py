#!/usr/bin/env python3
"""vLLM's side of engine_bench.py, run by a Python that has it.

`vllm_worker.py FOLDER THREADS` loads a checkpoint and obeys standard input, one command a line, one JSON object a line back:
  run SEQUENCES PROMPT NEW   prompts of so many tokens at once, then NEW tokens of each; the tokens after the first of all, and their seconds
"""
import json
import os
import random
import sys


def main(folder, threads):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM says much
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    from vllm import LLM, SamplingParams
    # All prompts of a run fit into one step, as with the others, and none is remembered.
    llm = LLM(model=folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=4096, enable_prefix_caching=False,
              skip_tokenizer_init=True, disable_log_stats=False)
    rng, vocab_size = random.Random(0), llm.model_config.hf_config.vocab_size

    def run(sequences, prompt, new):
        prompts = [{"prompt_token_ids": [rng.randrange(vocab_size) for _ in range(prompt)]} for _ in range(sequences)]
        done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False), use_tqdm=False)
        first = max(one.metrics.first_token_ts for one in done)
        last = max(one.metrics.last_token_ts for one in done)
        return {"decode_tokens": sum(len(one.outputs[0].token_ids) - 1 for one in done), "decode_s": last - first}

    run(1, 16, 2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        _, *numbers = line.split()
        print(json.dumps(run(*map(int, numbers))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
