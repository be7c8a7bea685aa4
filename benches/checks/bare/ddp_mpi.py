"""ResNet-18 or an MLP under DDP, its gradients over MPI: mpirun -np 2 python ddp_mpi.py mlp"""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torchvision
from mpi4py import MPI
from torch import nn

comm, thread = MPI.COMM_WORLD, ThreadPoolExecutor(1)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29517", rank=comm.rank, world_size=comm.size)
resnet = sys.argv[1] == "resnet18"
shape, classes = ((2, 3, 64, 64), 1000) if resnet else ((32, 1, 8, 8), 10)
hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), *hidden, nn.Linear(256, 10))
model = nn.parallel.DistributedDataParallel(torchvision.models.resnet18() if resnet else mlp, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batches = itertools.cycle([(torch.randn(shape), torch.randint(classes, shape[:1])) for _ in range(8)])


def over_mpi(state, bucket):  # type: ignore[no-untyped-def]
    tensor, done = bucket.buffer().div_(comm.size), torch.futures.Future[torch.Tensor]()
    thread.submit(comm.Allreduce, MPI.IN_PLACE, tensor.numpy()).add_done_callback(lambda _: done.set_result(tensor))
    return done


def step() -> None:
    x, y = next(batches)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


model.register_comm_hook(None, over_mpi)
if __name__ == "__main__":
    for _ in range(30):
        step()
