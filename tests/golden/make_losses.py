#!/usr/bin/env python3
"""Writes losses.json, which src/weft/trainer/losses_test.cc and advantages_test.cc are held against. Needs torch and TRL.

Losses of groups and of answers are TRL's own (GRPOTrainer and RLOOTrainer, their `_compute_loss` on recorded
log-probabilities instead of a model); what TRL has no function for is torch as the papers write it, named at the
declarations in losses.h, advantages.h and kl.h. All in double, differentiated by torch.

usage: make_losses.py > losses.json
"""
import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from trl import GRPOTrainer, RLOOTrainer

torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
cases = {}


def put(name, **values):
    cases[name] = {key: value.detach().flatten().tolist() if torch.is_tensor(value) else value
                   for key, value in values.items()}


def grad(loss, *inputs):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, inputs)])


# ---- Policy losses: 4 answers of 5, 3, 4 and 1 tokens, in 2 groups ----
LENGTHS, LONGEST = [5, 3, 4, 1], 6
mask = torch.zeros(4, LONGEST)
for row, length in enumerate(LENGTHS):
    mask[row, :length] = 1
new = torch.randn(4, LONGEST) * 0.4 - 1
old = new + torch.randn(4, LONGEST) * 0.3
reference = new + torch.randn(4, LONGEST) * 0.2
ratio_weights = torch.rand(4, LONGEST) * 1.5
rewards = torch.tensor([1.0, 0.25, 0.5, 0.9])
groups = rewards.view(2, 2)
advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
plain = (groups - groups.mean(1, keepdim=True)).flatten()
leave_one_out = (groups - (groups.sum(1, keepdim=True) - groups)).flatten()


def flat(values):
    return values[mask.bool()]


def trl_loss(trainer_class, variable, **settings):
    """The loss that TRL's trainer computes when the model's log-probabilities are `variable`."""
    inputs = settings.pop("inputs")
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (variable, torch.zeros_like(variable), None)
    for key, value in {"aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
                       "importance_sampling_level": "token", "use_vllm": False, "epsilon_low": 0.2,
                       "epsilon_high": 0.28, "beta": 0.0, "max_completion_length": LONGEST,
                       "current_gradient_accumulation_steps": 1, "loss_type": "bnpo",
                       "_entropy_bonus_enabled": False,
                       "args": SimpleNamespace(delta=None, use_bias_correction_kl=False),
                       **settings}.items():
        setattr(trainer, key, value)
    trainer.accelerator.num_processes = 1
    trainer.accelerator.reduce = lambda values, reduction: values
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = lambda values: values
    return trainer_class._compute_loss(trainer, None, {
        "prompt_ids": torch.zeros(4, 1, dtype=torch.long), "prompt_mask": torch.ones(4, 1),
        "completion_ids": torch.zeros(4, LONGEST, dtype=torch.long), "completion_mask": mask, **inputs})


common = dict(lengths=LENGTHS, longest=LONGEST, logprobs=flat(new), old=flat(old), reference=flat(reference),
              rewards=rewards)
# TRL's names of the three means: DAPO's over tokens, GRPO's over answers, Dr. GRPO's over a constant.
for mean, loss_type, by_deviation in [("tokens", "bnpo", True), ("answers", "grpo", True),
                                      ("longest", "dr_grpo", False)]:
    variable = new.clone().requires_grad_()
    values = advantages if by_deviation else plain
    loss = trl_loss(GRPOTrainer, variable, loss_type=loss_type, beta=0.04,
                    inputs={"advantages": values, "old_per_token_logps": old, "ref_per_token_logps": reference})
    put(f"grpo_{mean}", **common, advantages=values, by_deviation=by_deviation, kl=0.04, loss=loss,
        gradient=flat(grad(loss, variable).view_as(new)))

variable = new.clone().requires_grad_()
loss = trl_loss(GRPOTrainer, variable, use_vllm=True, vllm_importance_sampling_correction=True,
                inputs={"advantages": advantages, "old_per_token_logps": old,
                        "importance_sampling_ratio": ratio_weights})
put("grpo_importance", **common, advantages=advantages, importance=flat(ratio_weights), loss=loss,
    gradient=flat(grad(loss, variable).view_as(new)))

variable = (old + torch.randn(4, LONGEST) * 0.06).requires_grad_()
loss = trl_loss(RLOOTrainer, variable, epsilon_high=0.2,
                inputs={"advantages": leave_one_out, "old_logps": (old * mask).sum(1)})
put("rloo", **{**common, "logprobs": flat(variable)}, advantages=leave_one_out, loss=loss,
    gradient=flat(grad(loss, variable).view_as(new)))

# ---- PPO ----
values, old_values = torch.randn(13), torch.randn(13) * 0.5
returns = old_values + torch.randn(13) * 0.4
variable = values.clone().requires_grad_()
clipped = old_values + (variable - old_values).clamp(-0.2, 0.2)
loss = 0.5 * torch.max((variable - returns) ** 2, (clipped - returns) ** 2).mean()
put("value", values=values, old_values=old_values, returns=returns, loss=loss, gradient=grad(loss, variable))

token_rewards, state_values = torch.randn(7), torch.randn(7)
estimates, last = torch.zeros(7), torch.tensor(0.0)
for t in reversed(range(7)):
    after = state_values[t + 1] if t < 6 else 0.0
    last = token_rewards[t] + 0.97 * after - state_values[t] + 0.97 * 0.9 * last
    estimates[t] = last
put("gae", rewards=token_rewards, values=state_values, gamma=0.97, lambda_=0.9, advantages=estimates,
    whitened=(estimates - estimates.mean()) / (estimates.var() + 1e-8).sqrt())

# ---- KL ----
variable = new.flatten().clone().requires_grad_()
d = variable - reference.flatten()
for name, terms in [("k1", d), ("k2", d ** 2 / 2), ("k3", (-d).exp() - 1 + d)]:
    put(f"kl_{name}", logprobs=variable, reference=reference, values=terms,
        slopes=grad(terms.sum() + 0 * variable.sum(), variable))

# ---- Preferences ----
chosen, rejected, margins = torch.randn(6) * 2, torch.randn(6) * 2, torch.rand(6)
a, b = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
loss = -F.logsigmoid(a - b).mean()
put("bradley_terry", chosen=chosen, rejected=rejected, loss=loss, gradient=grad(loss, a, b))
loss = -F.logsigmoid(a - b - margins).mean()
put("bradley_terry_margins", chosen=chosen, rejected=rejected, margins=margins, loss=loss,
    gradient=grad(loss, a, b))

chosen, rejected = -torch.rand(6) * 30, -torch.rand(6) * 30
reference_chosen, reference_rejected = chosen + torch.randn(6) * 3, rejected + torch.randn(6) * 3
for name in ["dpo", "ipo"]:
    a = chosen.clone().requires_grad_()
    h = (a - reference_chosen) - (rejected - reference_rejected)
    losses = -F.logsigmoid(0.1 * h) if name == "dpo" else (h - 1 / (2 * 0.1)) ** 2
    put(name, chosen=chosen, rejected=rejected, reference_chosen=reference_chosen,
        reference_rejected=reference_rejected, beta=0.1, values=losses, slopes=grad(losses.sum(), a))

# ---- Old versions ----
sampled = flat(old) + torch.randn(13) * 0.6
put("importance", old=flat(old), sampled=sampled, cap=1.5, weights=(flat(old) - sampled).exp().clamp(max=1.5))

# A case a line, so that changes show.
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()) + "\n}")
