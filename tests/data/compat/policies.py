"""REINFORCE and actor-critic with given actions, and a squashed Gaussian policy."""

# ruff: noqa: B905 - in the style of the public code it stands for

from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def finish_episode(model, optimizer):
    R, policy_losses, value_losses = 0, [], []
    returns = deque()
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + np.finfo(np.float32).eps.item())
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]
    return loss.item()


def main(fill):
    rng = np.random.default_rng(4)
    model = Policy()
    fill(model)
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(5):
        for _ in range(6):
            state = torch.from_numpy(rng.standard_normal(4)).float()
            probs, state_value = model(state)
            m = Categorical(probs)
            action = torch.tensor(rng.integers(0, 2))
            model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
            model.rewards.append(float(rng.random()))
        losses.append(finish_episode(model, optimizer))
        losses.append(m.entropy().item())
    gaussian = nn.Linear(4, 4)
    fill(gaussian)
    optimizer = optim.RMSprop(gaussian.parameters(), lr=0.01)
    for _ in range(4):
        mean, log_std = gaussian(torch.from_numpy(rng.standard_normal((8, 4))).float()).chunk(2, dim=-1)
        policy = TransformedDistribution(Normal(mean, log_std.clamp(-5, 2).exp()), [TanhTransform(cache_size=1)])
        actions = torch.from_numpy(rng.uniform(-0.9, 0.9, (8, 2))).float()
        loss = -(policy.log_prob(actions).sum(-1) * torch.from_numpy(rng.standard_normal(8)).float()).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
