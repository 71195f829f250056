"""LSTMCells unrolled in double precision, trained by LBFGS with a closure."""

# ruff: noqa: UP008 - in the style of the public code it stands for

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1 = nn.LSTMCell(1, 7)
        self.gru2 = nn.GRUCell(7, 7)
        self.linear = nn.Linear(7, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), 7, dtype=torch.double)
        c_t = torch.zeros(input.size(0), 7, dtype=torch.double)
        h_t2 = torch.zeros(input.size(0), 7, dtype=torch.double)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2 = self.gru2(h_t, h_t2)
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2 = self.gru2(h_t, h_t2)
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def main(fill):
    data = np.sin(np.arange(24) / 3.0 + np.arange(5).reshape(5, 1))
    input, target = torch.from_numpy(data[1:, :-1]), torch.from_numpy(data[1:, 1:])
    test_input, test_target = torch.from_numpy(data[:1, :-1]), torch.from_numpy(data[:1, 1:])
    seq = Sequence()
    seq.double()
    fill(seq)
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
    losses = []
    for _ in range(2):

        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(input), target)
            losses.append(loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            pred = seq(test_input, future=3)
            losses.append(criterion(pred[:, :-3], test_target).item())
            losses.append(pred.detach().numpy()[0, -1])
    return losses
