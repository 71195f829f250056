"""Graph convolution and graph attention on a dense adjacency matrix."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim


class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim, use_bias=False):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(input_dim, output_dim))
        nn.init.xavier_normal_(self.kernel)
        self.bias = None
        if use_bias:
            self.bias = nn.Parameter(torch.Tensor(output_dim))
            nn.init.zeros_(self.bias)

    def forward(self, input_tensor, adj_mat):
        output = torch.mm(adj_mat, torch.mm(input_tensor, self.kernel))
        return output if self.bias is None else output + self.bias


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, n_heads, concat=False, leaky_relu_slope=0.2):
        super().__init__()
        self.n_heads, self.concat = n_heads, concat
        self.n_hidden = out_features // n_heads if concat else out_features
        self.W = nn.Parameter(torch.empty(size=(in_features, self.n_hidden * n_heads)))
        self.a = nn.Parameter(torch.empty(size=(n_heads, 2 * self.n_hidden, 1)))
        self.leakyrelu = nn.LeakyReLU(leaky_relu_slope)
        self.softmax = nn.Softmax(dim=1)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, h, adj_mat):
        n_nodes = h.shape[0]
        h_transformed = torch.mm(h, self.W).view(n_nodes, self.n_heads, self.n_hidden).permute(1, 0, 2)
        source = torch.matmul(h_transformed, self.a[:, : self.n_hidden, :])
        target = torch.matmul(h_transformed, self.a[:, self.n_hidden :, :])
        e = self.leakyrelu(source + target.mT)
        connectivity_mask = -9e16 * torch.ones_like(e)
        e = torch.where(adj_mat > 0, e, connectivity_mask)
        attention = F.softmax(e, dim=-1)
        h_prime = torch.matmul(attention, h_transformed)
        if self.concat:
            return h_prime.permute(1, 0, 2).contiguous().view(n_nodes, self.n_heads * self.n_hidden)
        return h_prime.mean(dim=0)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.gat1 = GraphAttentionLayer(6, 8, 2, concat=True)
        self.conv = GraphConv(8, 8, use_bias=True)
        self.gat2 = GraphAttentionLayer(8, 3, 1)

    def forward(self, x, adj):
        x = F.elu(self.gat1(x, adj))
        x = F.relu(self.conv(x, adj)) + x
        return F.log_softmax(self.gat2(x, adj), dim=1)


def main(fill):
    rng = np.random.default_rng(12)
    edges = torch.from_numpy(rng.integers(0, 10, (2, 25)))
    adj = torch.zeros(10, 10)
    adj.index_put_((edges[0], edges[1]), torch.ones(25))
    adj = ((adj + adj.T + torch.eye(10)) > 0).float()
    degree = adj.sum(1).pow(-0.5)
    normalised = torch.diag(degree) @ adj @ torch.diag(degree)
    x = F.normalize(torch.from_numpy(rng.random((10, 6))).float(), p=1, dim=1)
    labels = torch.from_numpy(rng.integers(0, 3, 10))
    idx = torch.randperm(10).sort().values
    train_idx, val_idx = torch.tensor_split(idx, [7])
    net = GAT()
    fill(net, 0.8)
    optimizer = optim.Adam(net.parameters(), lr=0.05, weight_decay=5e-4)
    criterion = nn.NLLLoss()
    losses = []
    for _ in range(5):
        net.train()
        optimizer.zero_grad()
        output = net(x, normalised)
        loss = criterion(output[train_idx], labels[train_idx])
        loss.backward()
        optimizer.step()
        correct = (output[val_idx].argmax(dim=1) == labels[val_idx]).float().mean()
        losses += [loss.item(), correct.item()]
    pooled = torch.zeros(3, 3).index_add_(0, labels, output.detach())
    counts = torch.zeros(3, dtype=torch.long).scatter_add_(0, labels, torch.ones_like(labels))
    return losses + pooled.flatten().tolist() + counts.tolist()
