"""Makes tests/golden/matrix/: small models of every family, dtype, RoPE kind and shape that the engine knows. For each
NAME.json, the config as transformers writes it, and NAME.golden, what transformers computes: arrays, each a count (u64) and
so many values of four bytes (u32 or f32), all little-endian:

  seed    u32 [1]              of the weights
  prompt  u32 [tokens]         token ids
  logits  f32 [tokens, vocab]  after each prompt token, computed in fp32 from the weights as they are stored
  greedy  u32 [256]            the text that follows the prompt, from the same, one token after another with a cache
  own     f32 [tokens, vocab]  the logits again, computed in the weights' own dtype where that is not fp32; else empty

Weights are not stored: element i of the tensor called NAME is drawn from splitmix64 (weights() here, matrix_weights() in
engine_golden_test.cc), so the files stay small. The seed is the first for which no two best logits on the way are closer than
MARGIN of the largest logit: the text is then the same for everyone who computes to 1e-4.

  python tests/golden/make_matrix.py [NAME ...]

needs torch, transformers and numpy; the tests that read the files need none of them. Made with transformers 5.24.0 and
torch 2.13.0.
"""

import os
import sys

import numpy
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, Qwen2Config, Qwen3Config

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "matrix")
PROMPT_TOKENS = 32
NEW_TOKENS = 256
MARGIN = 4e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def shape(hidden, heads, kv_heads, head_dim, layers=2, **more):
    return {"hidden_size": hidden, "intermediate_size": hidden + 24, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, **more}


LINEAR = rope("linear", 5000.0, factor=2.0)
# Begins to stretch in the middle of the text.
DYNAMIC = {**rope("dynamic", factor=3.0), "max_position_embeddings": 96}
# So short that all three bands of frequencies matter.
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
TIED = {"tie_word_embeddings": True}
WINDOW = {"use_sliding_window": True, "sliding_window": 20}

# Name: class, dtype, settings.
MODELS = {
    "llama": (LlamaConfig, "fp32", {**shape(64, 4, 4, 16)}),
    "llama_grouped_tied": (LlamaConfig, "fp32", {**shape(64, 4, 2, 32), **TIED}),
    "llama_one_kv_head": (LlamaConfig, "fp32", {**shape(64, 8, 1, 16, 3), **rope("default", 500000.0)}),
    "llama_biases_linear": (LlamaConfig, "fp32", {**shape(48, 4, 2, 24), **LINEAR, "attention_bias": True, "mlp_bias": True}),
    "llama_mlp_bias": (LlamaConfig, "fp32", {**shape(40, 2, 1, 40, 3), "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "llama_dynamic": (LlamaConfig, "fp32", {**shape(64, 4, 2, 16), **DYNAMIC}),
    "llama_llama3": (LlamaConfig, "fp32", {**shape(64, 2, 1, 64), **LLAMA3, **TIED}),
    "llama_yarn": (LlamaConfig, "fp32", {**shape(64, 4, 2, 48), **YARN}),
    "llama_head_256": (LlamaConfig, "fp32", {**shape(64, 2, 1, 256, 1)}),
    "llama_bf16": (LlamaConfig, "bf16", {**shape(64, 4, 2, 16), **TIED}),
    "llama_bf16_llama3": (LlamaConfig, "bf16", {**shape(64, 4, 2, 64), **LLAMA3, "attention_bias": True}),
    "llama_fp16_linear": (LlamaConfig, "fp16", {**shape(48, 6, 3, 16), **LINEAR}),
    "qwen2": (Qwen2Config, "fp32", {**shape(64, 4, 2, 16), **TIED}),
    "qwen2_window": (Qwen2Config, "fp32", {**shape(64, 4, 2, 32, 3), **WINDOW, "max_window_layers": 1}),
    "qwen2_all_windows": (Qwen2Config, "fp32", {**shape(48, 6, 2, 16), **WINDOW, "sliding_window": 7, "max_window_layers": 0}),
    "qwen2_linear": (Qwen2Config, "fp32", {**shape(48, 6, 3, 112, 1), **LINEAR}),
    "qwen2_dynamic": (Qwen2Config, "fp32", {**shape(64, 2, 2, 32), **DYNAMIC, **TIED}),
    "qwen2_llama3": (Qwen2Config, "fp32", {**shape(64, 4, 1, 64), **LLAMA3}),
    "qwen2_yarn": (Qwen2Config, "fp32", {**shape(64, 4, 2, 80), **YARN, **WINDOW, "max_window_layers": 1}),
    "qwen2_bf16_window": (Qwen2Config, "bf16", {**shape(64, 4, 2, 16), **WINDOW, "max_window_layers": 1}),
    "qwen2_fp16": (Qwen2Config, "fp16", {**shape(64, 4, 2, 32), **TIED}),
    "qwen3": (Qwen3Config, "fp32", {**shape(64, 4, 2, 128), **rope("default", 1000000.0)}),
    "qwen3_tied_bias": (Qwen3Config, "fp32", {**shape(64, 4, 4, 16, 3), **TIED, "attention_bias": True}),
    "qwen3_layer_types": (Qwen3Config, "fp32", {**shape(64, 4, 2, 32, 3), **WINDOW, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"]}),
    "qwen3_linear": (Qwen3Config, "fp32", {**shape(64, 4, 1, 96, 1), **LINEAR}),
    "qwen3_dynamic": (Qwen3Config, "fp32", {**shape(64, 4, 2, 32), **DYNAMIC}),
    "qwen3_llama3": (Qwen3Config, "fp32", {**shape(64, 2, 1, 192), **LLAMA3, **TIED}),
    "qwen3_yarn": (Qwen3Config, "fp32", {**shape(64, 4, 2, 64), **rope(
        "yarn", factor=3.0, original_max_position_embeddings=64, beta_fast=16.0, beta_slow=2.0, attention_factor=1.25)}),
    "qwen3_bf16": (Qwen3Config, "bf16", {**shape(64, 4, 2, 128), **TIED}),
    "qwen3_bf16_dynamic": (Qwen3Config, "bf16", {**shape(64, 4, 2, 32), **DYNAMIC}),
    "qwen3_fp16_yarn": (Qwen3Config, "fp16", {**shape(64, 4, 2, 64), **YARN}),
}


def weights(seed, name, count):
    """fp32 [count], uniform within 0.35: a deviation of 0.2."""
    key = 0xCBF29CE484222325  # FNV-1a
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(key) + numpy.uint64(seed) + numpy.arange(1, count + 1, dtype="u8") * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z ^= z >> numpy.uint64(31)
    steps = (z >> numpy.uint64(40)).astype("i8") - 2**23
    return (steps.astype("f4") / numpy.float32(2**23)) * numpy.float32(0.35)


def make_model(config, dtype, seed):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.from_numpy(weights(seed, name, parameter.numel())).view(parameter.shape)
            if "norm" in name:
                values = values + 1.0
            parameter.copy_(values.to(dtype))
    return model


def generate(model, prompt, bound_share):
    """Logits of the prompt, and the text; None for it where two logits come too close."""
    cache = DynamicCache(config=model.config)
    logits = model(torch.tensor([prompt]), cache=cache, use_cache=True).logits[0]
    bound = bound_share * float(logits.abs().max())
    greedy, last = [], logits[-1]
    while True:
        best = last.topk(2)
        if float(best.values[0] - best.values[1]) < bound:
            return logits, None
        greedy.append(int(best.indices[0]))
        if len(greedy) == NEW_TOKENS:
            return logits, greedy
        last = model(torch.tensor([greedy[-1:]]), cache=cache, use_cache=True).logits[0, -1]


def own_logits(model, dtype, prompt):
    """In the dtype that the weights have. Frequencies stay in fp32, as from_pretrained leaves them."""
    if dtype == torch.float32:
        return numpy.zeros(0, "<f4")
    frequencies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to(dtype)
    for name, buffer in model.named_buffers():
        buffer.data = frequencies[name]
    return model(torch.tensor([prompt])).logits[0].float().numpy().astype("<f4")


def make(name):
    kind, dtype_name, settings = MODELS[name]
    dtype = DTYPES[dtype_name]
    config = kind(**{"vocab_size": 50, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, **settings})
    config.architectures = [kind.__name__.replace("Config", "ForCausalLM")]
    prompt = [(7 * i * i + 11 * i + 3) % config.vocab_size for i in range(PROMPT_TOKENS)]
    for seed in range(1, 200):
        model = make_model(config, dtype, seed)
        logits, greedy = generate(model, prompt, MARGIN)
        if greedy is not None and len(set(greedy)) >= 12:
            break
    else:
        raise RuntimeError(f"{name}: no seed gives a text without a tie")
    print(f"{name}: seed {seed}, {len(set(greedy))} different tokens", flush=True)
    own = own_logits(model, dtype, prompt)
    config.dtype = dtype  # from_config has set it to what it computes in
    with open(os.path.join(FOLDER, name + ".json"), "w") as file:
        file.write(config.to_json_string())
    with open(os.path.join(FOLDER, name + ".golden"), "wb") as file:
        for array in (numpy.array([seed], "<u4"), numpy.array(prompt, "<u4"), logits.numpy().astype("<f4"), numpy.array(greedy, "<u4"), own):
            file.write(numpy.uint64(array.size).astype("<u8").tobytes() + array.tobytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for name in sys.argv[1:] or MODELS:
            make(name)
