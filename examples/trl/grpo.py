"""GRPO with TRL: `weft serve` generates, weft brings it the new weights after every step.

    weft serve MODEL_DIR --port 8000 &
    python grpo.py MODEL_DIR http://127.0.0.1:8000

The task: answers with as many of the letter `a` as possible. The trainer is TRL's own GRPOTrainer, the client that generates is
TRL's own VLLMClient; nothing of either is changed.
"""
import argparse

import torch
import weft
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from weft.integrations.transformers import WeftCallback


def make_rollout(url):
    """A rollout_func of GRPOTrainer: generates at the server."""
    client = VLLMClient(base_url=url)

    def rollout(prompts, trainer):
        prompt_ids = trainer.processing_class(prompts)["input_ids"]
        answer = client.generate(prompt_ids, temperature=trainer.temperature, max_tokens=trainer.max_completion_length)
        return {"prompt_ids": answer["prompt_ids"], "completion_ids": answer["completion_ids"],
                "logprobs": [[token[0] for token in sequence] for sequence in answer["logprobs"]]}

    return rollout


def count_letters(completions, **_):
    """The reward."""
    return [text.count("a") / max(1, len(text)) for text in completions]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("url")
    parser.add_argument("--key", help="the server's admin key")
    parser.add_argument("--save", help="folder for the trained model")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    config = GRPOConfig(output_dir="out/trl", max_steps=options.steps, per_device_train_batch_size=16, num_generations=8,
                        max_completion_length=16, learning_rate=options.learning_rate, logging_steps=1, save_strategy="no",
                        report_to=[], use_cpu=True, bf16=False, beta=0.0, temperature=1.0)
    with weft.Publisher(options.url, key=options.key, delta=True) as publisher:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype="float32"),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            reward_funcs=count_letters,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["ab", "cd", "ef", "gh"] * 16}),
            rollout_func=make_rollout(options.url),
            callbacks=[WeftCallback(publisher, dtype=torch.bfloat16)],  # what the server serves
        )
        trainer.train()
    if options.save:
        trainer.save_model(options.save)
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(f"step {entry['step']}: reward {entry['reward']:.3f}")


if __name__ == "__main__":
    main()
