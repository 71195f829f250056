"""`engine.data`: datasets, samplers, collation and `DataLoader` under the names of `torch.utils.data`.

Read in this order: dataset, sampler, collate, fetch, place, dataloader; then processes and worker; pinning for GPUs.
"""

from typing import Any

from engine.data.collate import default_collate, default_convert
from engine.data.dataloader import DataLoader
from engine.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from engine.data.pinning import DevicePrefetcher
from engine.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from engine.data.worker import WorkerInfo, get_worker_info
from engine.errors.absent import found

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DevicePrefetcher",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]


def __getattr__(name: str) -> Any:
    return found("engine.data", name)
