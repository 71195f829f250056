"""A variational autoencoder with given noise, and one with distributions: rsample, kl_divergence."""

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 12)
        self.fc21, self.fc22 = nn.Linear(12, 3), nn.Linear(12, 3)
        self.fc3 = nn.Linear(3, 12)
        self.fc4 = nn.Linear(12, 20)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return mu + eps * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x, eps):
        mu, logvar = self.encode(x.view(-1, 20))
        return self.decode(self.reparameterize(mu, logvar, eps)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 20), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def main(fill):
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.random((16, 4, 5)), dtype=torch.float32)
    model = VAE()
    fill(model)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        eps = torch.tensor(rng.standard_normal((16, 3)), dtype=torch.float32)
        optimizer.zero_grad()
        loss = loss_function(*((out := model(x, eps))[0], x, out[1], out[2]))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        # the same divergence through distributions
        posterior = Independent(Normal(out[1], torch.exp(0.5 * out[2])), 1)
        prior = Independent(Normal(torch.zeros(3), torch.ones(3)), 1)
        losses.append(kl_divergence(posterior, prior).sum().item())
    return losses
