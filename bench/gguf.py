"""Writes a checkpoint of make_checkpoint.py as GGUF for llama.cpp: bf16 matrices where they were bf16, norms in fp32 as it wants
them. Standard library only. Source: docs/gguf.md of ggml, and the names in llama.cpp's gguf-py/gguf/constants.py."""
import json
import struct

# ggml_type and gguf_metadata_value_type.
F32, BF16 = 0, 30
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
MOSTLY_BF16 = 32
ALIGNMENT = 32

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    packed = {UINT32: lambda: struct.pack("<I", value), FLOAT32: lambda: struct.pack("<f", value), BOOL: lambda: struct.pack("<?", value),
              STRING: lambda: text(value)}[kind]()
    return text(key) + struct.pack("<I", kind) + packed


def list_entry(key, kind, values):
    packed = b"".join(map(text, values)) if kind == STRING else struct.pack(f"<{len(values)}i", *values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + packed


def metadata(config, tokens, end):
    """`tokens` by id, in the alphabet of byte-level BPE."""
    control, normal = 3, 1  # llama_token_type
    p = "qwen3."
    return [
        entry("general.architecture", STRING, "qwen3"), entry("general.file_type", UINT32, MOSTLY_BF16),
        entry(p + "block_count", UINT32, config["num_hidden_layers"]), entry(p + "context_length", UINT32, config["max_position_embeddings"]),
        entry(p + "embedding_length", UINT32, config["hidden_size"]), entry(p + "feed_forward_length", UINT32, config["intermediate_size"]),
        entry(p + "attention.head_count", UINT32, config["num_attention_heads"]),
        entry(p + "attention.head_count_kv", UINT32, config["num_key_value_heads"]),
        entry(p + "attention.key_length", UINT32, config["head_dim"]), entry(p + "attention.value_length", UINT32, config["head_dim"]),
        entry(p + "rope.freq_base", FLOAT32, config["rope_theta"]),
        entry(p + "attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"]),
        entry("tokenizer.ggml.model", STRING, "gpt2"), entry("tokenizer.ggml.pre", STRING, "qwen2"),
        list_entry("tokenizer.ggml.tokens", STRING, tokens),
        list_entry("tokenizer.ggml.token_type", INT32, [control if id == end else normal for id in range(len(tokens))]),
        list_entry("tokenizer.ggml.merges", STRING, []), entry("tokenizer.ggml.eos_token_id", UINT32, end),
        entry("tokenizer.ggml.add_bos_token", BOOL, False),
    ]


def write(folder, out, tokens):
    """From folder/model.safetensors, whose norms are its only vectors."""
    config = json.loads((folder / "config.json").read_text())
    with open(folder / "model.safetensors", "rb") as source, open(out, "wb") as file:
        header_bytes = struct.unpack("<Q", source.read(8))[0]
        header = json.loads(source.read(header_bytes))
        header.pop("__metadata__", None)
        infos, at = [], 0
        for name, tensor in header.items():
            vector = len(tensor["shape"]) == 1
            begin, end = tensor["data_offsets"]
            dimensions = tensor["shape"][::-1]
            infos.append(text(gguf_name(name)) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, F32 if vector else BF16, at))
            at += -(-((end - begin) * (2 if vector else 1)) // ALIGNMENT) * ALIGNMENT
        entries = metadata(config, tokens, config["eos_token_id"])
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join(entries) + b"".join(infos)
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for tensor in header.values():
            begin, end = tensor["data_offsets"]
            source.seek(8 + header_bytes + begin)
            data = source.read(end - begin)
            if len(tensor["shape"]) == 1:
                data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
            file.write(data + bytes(-len(data) % ALIGNMENT))
