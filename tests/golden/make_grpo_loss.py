#!/usr/bin/env python3
"""Prints the golden numbers of src/weft/trainer/grpo_test.cc. Needs torch.

The group-relative advantage and the clipped loss as DeepSeekMath (section 4.1) and DAPO (3.1, 3.3) write
them, in double, differentiated by torch.
"""
import torch

torch.manual_seed(3)
new = (torch.randn(8, dtype=torch.float64) * 0.3 - 1).float()
old = (new + torch.randn(8) * 0.25).float()
rewards = torch.tensor([1, 0, 0, 1, 0, 0, 1, 0], dtype=torch.float64).view(2, 4)
advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
advantages = advantages.view(-1)

variable = new.double().requires_grad_()
ratio = (variable - old.double()).exp()
gain = torch.min(ratio * advantages, ratio.clamp(1 - 0.2, 1 + 0.28) * advantages)
loss = -gain.sum() / 10
loss.backward()

for name, values in [("logprobs", new), ("sampled", old), ("advantages", advantages),
                     ("gradient", variable.grad), ("loss", loss.detach().view(1))]:
    print(name, ", ".join(repr(value) for value in values.tolist()))
