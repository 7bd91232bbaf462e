#!/usr/bin/env python3
"""Writes models/judge, a small reward model as transformers saves it, and models/judge.json: what transformers and TRL
compute with it, which src/weft/trainer/reward_model_test.cc holds the trainer's policy against. Needs torch,
transformers and TRL.

usage: make_judge.py
"""
import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

FOLDER = pathlib.Path(__file__).parent / "models"

torch.manual_seed(4)
config = LlamaConfig(vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
                     bos_token_id=None, eos_token_id=13, pad_token_id=14, num_labels=1)
judge = LlamaForSequenceClassification(config)
for name, parameter in judge.named_parameters():
    # Norms, too, shall not be what they begin as; logits of some size.
    torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
judge.to(torch.bfloat16).save_pretrained(FOLDER / "judge")

# In fp32 with the weights as they were saved (what is cast to bf16 has frequencies in bf16, too).
judge = LlamaForSequenceClassification.from_pretrained(FOLDER / "judge", dtype=torch.float32).eval()
policy = LlamaForCausalLM(config).float().eval()
policy.model.load_state_dict(judge.model.state_dict())
cases = []
for prompt, answer in [([4, 7, 10, 8, 5, 11], [1, 3, 2, 13]), ([9], [8]), ([3, 1, 4, 1, 5, 9, 2, 6, 12], [5, 3, 5])]:
    ids = torch.tensor([prompt + answer])
    with torch.no_grad():
        logits = policy(ids).logits[0, len(prompt) - 1 : -1]
        cases.append({"prompt": prompt, "answer": answer,
                      "logprobs": selective_log_softmax(logits, torch.tensor(answer)).tolist(),
                      "entropies": entropy_from_logits(logits).tolist(),
                      "score": judge(ids).logits[0, 0].item()})
(FOLDER / "judge.json").write_text(json.dumps(cases, indent=None).replace("}, ", "},\n ") + "\n")
