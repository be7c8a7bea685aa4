"""ResNet-18 or an MLP under DDP over gloo: torchrun --nproc-per-node=2 ddp_gloo.py resnet18"""

import itertools
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch import nn


def mlp() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *hidden, nn.Linear(256, 10))


dist.init_process_group("gloo")
resnet = sys.argv[1] == "resnet18"
shape, classes = ((2, 3, 64, 64), 1000) if resnet else ((32, 1, 8, 8), 10)
model = nn.parallel.DistributedDataParallel(torchvision.models.resnet18() if resnet else mlp(), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batches = itertools.cycle([(torch.randn(shape), torch.randint(classes, shape[:1])) for _ in range(8)])


def step() -> None:
    x, y = next(batches)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


if __name__ == "__main__":
    for _ in range(10):
        step()
    start = time.perf_counter()
    for _ in range(20):
        step()
    print(f"rank {dist.get_rank()}: {(time.perf_counter() - start) / 20 * 1e3:.2f} ms a step")
    dist.destroy_process_group()
