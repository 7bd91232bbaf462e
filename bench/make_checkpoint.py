#!/usr/bin/env python3
"""Writes a Hugging Face checkpoint with random bf16 weights, Qwen3 architecture. Standard library only.

usage: make_checkpoint.py {tiny,60m,0.6b} OUT_DIR [--seed N]

0.6b has exactly the shapes of Qwen3-0.6B (1.19 GB), 60m is 20 times smaller. Weights are normal with deviation 0.02, drawn once into a pool of
4 M values and cut from it at random places, so that a gigabyte takes seconds; norms are one. The tokenizer is byte level: id = byte.
A folder that is there already with the same size and seed is left alone.
"""
import argparse
import array
import json
import pathlib
import random
import struct

SIZES = {
    "tiny": dict(hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, vocab_size=512),
    "60m": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=6,
                num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, vocab_size=65536),
    "0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, vocab_size=151936),
}


def tensors(c):
    h, d, f = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    yield "model.embed_tokens.weight", [c["vocab_size"], h]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [h]
        yield p + "mlp.down_proj.weight", [h, f]
        yield p + "mlp.gate_proj.weight", [f, h]
        yield p + "mlp.up_proj.weight", [f, h]
        yield p + "post_attention_layernorm.weight", [h]
        yield p + "self_attn.k_norm.weight", [d]
        yield p + "self_attn.k_proj.weight", [c["num_key_value_heads"] * d, h]
        yield p + "self_attn.o_proj.weight", [h, c["num_attention_heads"] * d]
        yield p + "self_attn.q_norm.weight", [d]
        yield p + "self_attn.q_proj.weight", [c["num_attention_heads"] * d, h]
        yield p + "self_attn.v_proj.weight", [c["num_key_value_heads"] * d, h]
    yield "model.norm.weight", [h]


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def byte_tokenizer():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            chars[byte] = chr(byte)
        else:
            chars[byte] = chr(256 + extra)
            extra += 1
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
                {"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {c: b for b, c in chars.items()}, "merges": []}}


def write(size, out, seed):
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "rms_norm_eps": 1e-6,
              "rope_theta": 1e6, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_bias": False,
              "bos_token_id": None, "eos_token_id": 256, **SIZES[size]}
    stamp = json.dumps([size, seed, 1])
    if (out / "stamp.json").exists() and (out / "stamp.json").read_text() == stamp:
        return
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    pool_elems = 1 << 22
    pool = array.array("H", (bf16(rng.gauss(0, 0.02)) for _ in range(pool_elems))).tobytes()
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(config):
        size_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_bytes]}
        at += size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(config):
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if len(shape) == 1:
                file.write(struct.pack("<H", bf16(1.0)) * shape[0])
                continue
            while left:
                begin = 2 * rng.randrange(pool_elems // 2)
                piece = pool[begin:begin + min(left, 1 << 22)]
                file.write(piece)
                left -= len(piece)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}))
    (out / "stamp.json").write_text(stamp)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.size, arguments.out, arguments.seed)
