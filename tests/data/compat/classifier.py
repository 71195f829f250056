"""A convolutional classifier as first tutorials write it: dropout, log_softmax, StepLR, train and test."""

# ruff: noqa: UP008, UP010 - in the style of the public code it stands for

from __future__ import print_function

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)
        self.dropout1 = nn.Dropout2d(0.0)
        self.dropout2 = nn.Dropout(0.0)
        self.fc1 = nn.Linear(8 * 4 * 4, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.dropout1(self.conv2(x)), 2))
        x = x.view(-1, 8 * 4 * 4)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, device, train_loader, optimizer, losses):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            losses.append(loss.item())


def test(model, device, test_loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return [test_loss / len(test_loader.dataset), correct]


def main(fill):
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-interval", type=int, default=1)
    args = parser.parse_args([])
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((40, 1, 12, 12)).astype("float32"))
    labels = torch.from_numpy(rng.integers(0, 10, 40))
    dataset = TensorDataset(images, labels)
    train_loader = DataLoader(dataset, batch_size=8, shuffle=False, num_workers=0, pin_memory=False)
    test_loader = DataLoader(dataset, batch_size=16)
    model = Net().to(device)
    fill(model)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(2):
        train(args, model, device, train_loader, optimizer, losses)
        losses += test(model, device, test_loader)
        scheduler.step()
    return losses
