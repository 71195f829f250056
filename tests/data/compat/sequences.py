"""Sequences of different lengths: packed recurrent layers, attention with padding masks, CTC."""

# ruff: noqa: B905 - in the style of the public code it stands for

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self):
        rng = np.random.default_rng(11)
        self.pairs = []
        for _ in range(12):
            length = int(rng.integers(2, 7))
            self.pairs.append((torch.from_numpy(rng.integers(1, 9, length)), torch.from_numpy(rng.integers(1, 9, 2))))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate_fn(batch):
    sources, targets = zip(*batch)
    lengths = torch.LongTensor([len(each) for each in sources])
    return pad_sequence(list(sources), batch_first=True), lengths, torch.stack(targets)


class Recognizer(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.embed = nn.Embedding(9, 5, padding_idx=0)
        self.rnn = getattr(nn, cell)(5, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 9)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        assert isinstance(packed, PackedSequence)
        output, _ = self.rnn(packed)
        output, out_lengths = pad_packed_sequence(output, batch_first=True, padding_value=0.0)
        mask = torch.arange(output.size(1))[None, :] >= out_lengths[:, None]
        attended, weights = self.attention(output, output, output, key_padding_mask=mask)
        return F.log_softmax(self.out(output + attended), dim=-1), weights


def main(fill):
    losses = []
    for cell in ("LSTM", "GRU"):
        model = Recognizer(cell)
        fill(model)
        with torch.no_grad():
            model.embed.weight[0].fill_(0)
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.02)
        ctc = nn.CTCLoss(blank=0, reduction="mean", zero_infinity=True)
        for _ in range(2):
            for x, lengths, targets in DataLoader(Sentences(), batch_size=4, collate_fn=collate_fn):
                log_probs, weights = model(x, lengths)
                loss = ctc(log_probs.transpose(0, 1), targets, lengths, torch.full((4,), 2, dtype=torch.long))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses += [loss.item(), weights.max().item()]
    packed = pack_sequence([torch.ones(3, 2), torch.zeros(2, 2)])
    losses += [packed.data.sum().item(), *packed.batch_sizes.tolist()]
    return losses
