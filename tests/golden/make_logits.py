"""Makes tests/golden/models/NAME/: tiny random checkpoints, as save_pretrained of transformers writes them, and in
NAME.golden beside each what transformers computes with it in fp32. That is four arrays, each a count (u64) and so
many values of four bytes (u32 or f32), all little-endian:

  prompt  u32 [tokens]         token ids
  logits  f32 [tokens, vocab]  after each prompt token
  greedy  u32 [64]             the text that follows the prompt
  margin  f32 [64]             the distance between the two best logits at each token of it

  python tests/golden/make_logits.py [NAME ...]

needs torch, transformers and numpy; the tests that read the files need none of them. Everything comes from fixed
seeds. Made with transformers 5.24.0 and torch 2.13.0.
"""

import os
import shutil
import sys

import numpy
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = dict(vocab_size=160, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)

# Name: config, dtype, largest shard.
MODELS = {
    # Grouped heads, untied, llama3 frequencies short enough that all three of their bands matter here, sharded.
    "llama": (LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}), torch.float32, "120KB"),
    # Biases everywhere, head_dim of its own, linear frequencies.
    "llama_bias": (LlamaConfig(**SIZES, head_dim=24, attention_bias=True, mlp_bias=True, rope_parameters={
        "rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}), torch.float32, "5GB"),
    # Tied, a window in the second layer.
    "qwen2": (Qwen2Config(**SIZES, tie_word_embeddings=True, use_sliding_window=True, sliding_window=24,
                          max_window_layers=1), torch.float32, "5GB"),
    # Norms of queries and keys, hidden size not heads times head_dim.
    "qwen3": (Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=False, rope_parameters={
        "rope_type": "default", "rope_theta": 1000000.0}), torch.float32, "5GB"),
    # bf16 weights, yarn frequencies.
    "qwen3_bf16": (Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}),
        torch.bfloat16, "5GB"),
}


def save_model(folder, config, dtype, shard, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # The default initialisation leaves biases at zero and norms at one, which would hide mistakes.
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)


def reference(folder, count):
    """Read back, so that only what was stored counts, and computed in fp32 whatever the weights are: as the engine."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = [(7 * i * i + 11 * i + 3) % model.config.vocab_size for i in range(40)]
    ids = torch.tensor([prompt])
    greedy, margin = [], []
    with torch.no_grad():
        logits = model(ids).logits[0]
        for _ in range(count):
            best = model(ids).logits[0, -1].topk(2)
            greedy.append(int(best.indices[0]))
            margin.append(float(best.values[0] - best.values[1]))
            ids = torch.cat([ids, best.indices[:1].view(1, 1)], dim=1)
    return [numpy.array(prompt, "<u4"), logits.numpy().astype("<f4"), numpy.array(greedy, "<u4"),
            numpy.array(margin, "<f4")]


def main(names):
    torch.set_num_threads(1)
    for seed, (name, (config, dtype, shard)) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        folder = os.path.join(HERE, "models", name)
        shutil.rmtree(folder, ignore_errors=True)
        save_model(folder, config, dtype, shard, seed)
        with open(folder + ".golden", "wb") as file:
            for array in reference(folder, 64):
                file.write(numpy.uint64(array.size).astype("<u8").tobytes() + array.tobytes())


if __name__ == "__main__":
    main(sys.argv[1:])
