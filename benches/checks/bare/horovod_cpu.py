"""ResNet-18 or an MLP under Horovod: horovodrun -np 2 python horovod_cpu.py mlp, or mpirun in horovodrun's place"""

import itertools
import sys
import time

import horovod.torch as hvd
import torch
import torchvision
from torch import nn


def mlp() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *hidden, nn.Linear(256, 10))


hvd.init()
resnet = sys.argv[1] == "resnet18"
shape, classes = ((2, 3, 64, 64), 1000) if resnet else ((32, 1, 8, 8), 10)
model = torchvision.models.resnet18() if resnet else mlp()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01, 0.9), model.named_parameters())
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
    print(f"rank {hvd.rank()}: {(time.perf_counter() - start) / 20 * 1e3:.2f} ms a step")
