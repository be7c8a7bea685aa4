"""Batches of a rank, step by step. A batch depends on the case, the rank and the step alone.

So one process can make any rank's batch of any step again: the parity gate lives on that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, TensorDataset

from benches.errors import UserError
from benches.spec import Case, ModelSpec
from benches.workloads import datasets
from benches.workloads.references import load, one_line
from launchers.kin import die_with_parent

POOL = 8
"""Distinct synthetic batches of a rank. Step s takes batch s mod 8, so that no step waits for one to be drawn."""

START = "spawn"
"""How loader processes start. A fork would carry the engine's threads, MPI and CUDA along; those of a fork server would
outlive a rank that is killed, for they hold the server open and watch it instead of the rank."""


class Batches(Protocol):
    """One rank's batches."""

    def prepare(self, first_step: int, steps: int) -> None:
        """Untimed: make ready what the next `steps` steps from `first_step` need. Must precede their calls."""

    def __call__(self, step: int) -> Any:
        """Timed: the batch of this step, on the device. Steps are taken in turn, from the `first_step` prepared."""

    def indices(self, step: int) -> list[int] | None:
        """Which samples of a real set this rank takes at this step; null for synthetic batches."""


def stream_seed(seed: int, step: int, rank: int, use: str = "step") -> int:
    """Seed of the random stream of one use at one step on one rank: 32 bits of SHA-256 of the four together.

    32, because torch's CPU generator looks at no more; hashed, because sums of small numbers collide.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{rank}/{use}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def make_batches(case: Case, rank: int, world_size: int, device: torch.device) -> Batches:
    """The batches of this rank. Raises UserError where the data set is absent or does not fit."""
    datasets.check(case)
    if case.data.name == "synthetic":
        return Synthetic(case, rank, device)
    dataset = _digits() if case.data.name == "digits" else _folder(str(case.data.root), datasets.picture_shape(case))
    shard = Shard(len(dataset), case, rank, world_size)  # type: ignore[arg-type]
    if isinstance(dataset, TensorDataset):
        return InMemory(dataset, shard, device)
    return Loaded(dataset, shard, case.data.workers, device)


def batch_for(case: Case, rank: int, world_size: int, step: int, device: torch.device) -> Any:
    """Rank's batch of this step, as `make_batches` gives it there; made in this process, whichever rank it is."""
    alone = msgspec.structs.replace(case, data=msgspec.structs.replace(case.data, workers=0))
    batches = make_batches(alone, rank, world_size, device)
    batches.prepare(step, 1)
    return batches(step)


class Synthetic:
    """Batches drawn by `model.batch`, at most eight distinct ones, each seeded by (seed, step mod 8, rank)."""

    def __init__(self, case: Case, rank: int, device: torch.device) -> None:
        self._case, self._rank, self._device = case, rank, device
        self._draw = load(case.model.batch, "model.batch")
        self._pool: dict[int, Any] = {}

    def prepare(self, first_step: int, steps: int) -> None:
        for step in range(first_step, first_step + min(steps, POOL)):
            if step % POOL not in self._pool:
                self._pool[step % POOL] = self._drawn(step % POOL)

    def __call__(self, step: int) -> Any:
        return self._pool[step % POOL]

    def indices(self, step: int) -> None:
        return None

    def _drawn(self, slot: int) -> Any:
        generator = torch.Generator().manual_seed(stream_seed(self._case.seed, slot, self._rank, "batch"))
        return draw(self._draw, self._case.model, generator, self._case.data.per_rank_batch, self._device)


def draw(
    function: Callable[..., Any],
    model: ModelSpec,
    generator: torch.Generator,
    per_rank_batch: int,
    device: torch.device,
) -> Any:
    """Call a batch function. Raises UserError that names it where it fails."""
    try:
        return function(generator, per_rank_batch, device, **model.batch_kwargs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise UserError(f"model.batch_kwargs={model.batch_kwargs}: {model.batch} failed: {one_line(error)}") from error


class Shard:
    """Which samples of a real set a rank takes at a step.

    An epoch is one shuffle of the set, by torch's DistributedSampler. Step k of it takes the k-th stretch of
    `world_size` x `per_rank_batch` samples, whatever the world size; ranks share it without overlap; the tail that
    fills no global batch is dropped, so no sample is counted twice.
    """

    def __init__(self, size: int, case: Case, rank: int, world_size: int) -> None:
        order: Dataset[int] = range(size)  # type: ignore[assignment]  # the sampler only takes its length
        seed = stream_seed(case.seed, 0, 0, "shuffle")
        self._sampler: DistributedSampler[int] = DistributedSampler(
            order, world_size, rank, shuffle=True, seed=seed, drop_last=True
        )
        self._batch = case.data.per_rank_batch
        self._epoch = -1
        self._order: list[int] = []
        self.steps_per_epoch = len(self._sampler) // self._batch

    def indices(self, step: int) -> list[int]:
        """Indices of this rank's samples, `per_rank_batch` of them."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._sampler.set_epoch(epoch)
            self._epoch, self._order = epoch, list(self._sampler)
        return self._order[position * self._batch : (position + 1) * self._batch]


class InMemory:
    """Batches picked from tensors that lie on the device."""

    def __init__(self, dataset: TensorDataset, shard: Shard, device: torch.device) -> None:
        self._tensors = tuple(tensor.to(device) for tensor in dataset.tensors)
        self._device = device
        self._chosen: dict[int, Tensor] = {}
        self.indices = shard.indices

    def prepare(self, first_step: int, steps: int) -> None:
        chosen = {step: torch.tensor(self.indices(step)) for step in range(first_step, first_step + steps)}
        self._chosen = {step: index.to(self._device) for step, index in chosen.items()}

    def __call__(self, step: int) -> Any:
        index = self._chosen[step]
        return tuple(tensor[index] for tensor in self._tensors)


class Loaded:
    """Batches read from disk by a DataLoader that runs ahead; pinned memory where the device is a GPU."""

    def __init__(self, dataset: Dataset[Any], shard: Shard, workers: int, device: torch.device) -> None:
        self._dataset, self._workers, self._device = dataset, workers, device
        self._next = -1
        self._iterator: Iterator[Any] = iter(())
        self.indices = shard.indices

    def prepare(self, first_step: int, steps: int) -> None:
        if first_step != self._next:
            self._next, self._iterator = first_step, iter(self._loader(first_step))

    def __call__(self, step: int) -> Any:
        if step != self._next:
            raise ValueError(f"step {step}: the loader stands at step {self._next}; prepare it first")
        self._next += 1
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in next(self._iterator))

    def _loader(self, first_step: int) -> DataLoader[Any]:
        return DataLoader(
            self._dataset,
            batch_sampler=_Ahead(self.indices, first_step),
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            multiprocessing_context=START if self._workers else None,
            worker_init_fn=_follow_rank,
        )


def _follow_rank(_worker: int) -> None:
    """Let a loader process end at once when its rank is killed; torch's own look takes seconds."""
    die_with_parent()


class _Ahead(Sampler[list[int]]):
    """Indices of step after step, without end, so that no epoch's edge restarts the loader's processes."""

    def __init__(self, indices: Callable[[int], list[int]], first_step: int) -> None:
        self._indices, self._first_step = indices, first_step

    def __iter__(self) -> Iterator[list[int]]:
        step = self._first_step
        while True:
            yield self._indices(step)
            step += 1


@lru_cache(maxsize=1)
def _digits() -> TensorDataset:
    """Pictures (1797, 1, 8, 8), float32 from 0 to 1, and labels (1797,), int64."""
    # What sklearn.datasets.load_digits reads: 64 grey values from 0 to 16, then the label. Importing that takes 2 s.
    table = torch.from_numpy(np.loadtxt(datasets.digits_file(), delimiter=","))
    pictures = (table[:, :-1] / 16).float().view(-1, 1, 8, 8)
    return TensorDataset(pictures, table[:, -1].long())


@lru_cache(maxsize=4)
def _folder(root: str, shape: tuple[int, int, int]) -> Dataset[Any]:
    """Pictures of `shape`, float32 from -1 to 1, and labels. No random crop: a batch must be makeable again."""
    from torchvision import datasets as sets
    from torchvision import transforms

    channels, height, width = shape
    steps = [
        transforms.Grayscale(channels),
        transforms.Resize(max(height, width)),
        transforms.CenterCrop((height, width)),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * channels, [0.5] * channels),
    ]
    folder: Dataset[Any] = sets.ImageFolder(root, transforms.Compose(steps if channels == 1 else steps[1:]))
    return folder
