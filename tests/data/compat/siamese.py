"""Pairs and triplets through one network; upscaling by PixelShuffle with an orthogonal initialisation."""

# ruff: noqa: UP008 - in the style of the public code it stands for

import numpy as np
import torch
import torch.nn as nn
import torch.nn.init as init
from torch.optim import SGD


class SiameseNetwork(nn.Module):
    def __init__(self):
        super(SiameseNetwork, self).__init__()
        self.features = torch.nn.Sequential(*(list(nn.ModuleList([nn.Conv2d(1, 4, 3, 2), nn.ReLU()]).children())))
        self.fc = nn.Sequential(nn.Linear(4 * 9 * 2, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        self.sigmoid = nn.Sigmoid()
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        output = self.features(x)
        return output.view(output.size()[0], -1)

    def forward(self, input1, input2):
        output = torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)
        return self.sigmoid(self.fc(output))


class SuperResolution(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 6, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(6, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight)

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(self.relu(self.conv1(x))))


def main(fill):
    rng = np.random.default_rng(5)
    model = SiameseNetwork()
    fill(model)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    triplet = nn.TripletMarginLoss(margin=0.7, p=2)
    losses = []
    for _ in range(4):
        first, second, third = (torch.FloatTensor(rng.standard_normal((6, 1, 7, 7)).tolist()) for _ in range(3))
        targets = torch.from_numpy(rng.integers(0, 2, 6)).float()
        optimizer.zero_grad()
        outputs = model(first, second).squeeze()
        loss = nn.BCELoss()(outputs, targets)
        loss = loss + triplet(*(model.forward_once(each) for each in (first, second, third)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        losses.append(torch.where(outputs > 0.5, 1, 0).sum().item())
    net = SuperResolution(3)
    fill(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    small = torch.from_numpy(rng.random((2, 1, 5, 5))).float()
    large = torch.nn.functional.interpolate(small, scale_factor=3, mode="bicubic", align_corners=False)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.MSELoss()(net(small), large)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        losses.append(10 * torch.log10(1 / loss.detach()).item())
    return losses
