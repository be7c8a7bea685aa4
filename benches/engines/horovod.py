"""Horovod over its gloo, MPI and NCCL operations."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from benches.engines.base import Engine, Trainer
from benches.spec import Case, HorovodSettings


class HorovodTrainer(Trainer):
    """The reduction starts in hooks during backward; `step` waits for it."""

    def synchronize(self) -> None:
        self.optimizer.synchronize()  # type: ignore[attr-defined]

    def step(self, scaler: torch.amp.GradScaler | None) -> None:
        if scaler is None:
            self.optimizer.step()
            return
        self.synchronize()
        self.step_synchronized(scaler)

    def step_synchronized(self, scaler: torch.amp.GradScaler | None) -> None:
        # GradScaler looks for infinities before it steps, so the reduction must be done by then.
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        with self.optimizer.skip_synchronize():  # type: ignore[attr-defined]
            super().step(scaler)


class HorovodEngine(Engine):
    """Horovod with the case's settings, which it reads from the environment once, at `init`."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        assert case.horovod is not None
        os.environ.update(environment(case, case.horovod))
        import horovod.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.world_size = hvd.rank(), hvd.size()
        self._check_transport()

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        # The optimizer is fresh and equal on all ranks; broadcast_optimizer_state would first take a step with zero
        # gradients to create its state, which counts as a step of Adam and makes another update than DDP's.
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        wrapped = self.hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        return HorovodTrainer(model, wrapped)

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Average, name="ringduel.allreduce")

    def barrier(self) -> None:
        self.hvd.barrier()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        rows = self.hvd.allgather(tensor.contiguous().unsqueeze(0), name="ringduel.gather")
        return list(rows.unbind(0))

    def describe(self) -> dict[str, Any]:
        hvd = self.hvd
        names = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY")
        return {
            "controller": "mpi" if hvd.mpi_enabled() else "gloo",
            "mpi_threads_supported": bool(hvd.mpi_enabled() and hvd.mpi_threads_supported()),
            "environment": {name: os.environ[name] for name in names},
        }

    def close(self) -> None:
        self.hvd.shutdown()

    def _check_transport(self) -> None:
        """Raise RuntimeError when Horovod travels over something else than the case says."""
        enabled = {"gloo": self.hvd.gloo_enabled, "mpi": self.hvd.mpi_enabled, "nccl": self.hvd.nccl_built}
        transport = str(self.case.transport)
        if not enabled[transport]():
            raise RuntimeError(f"transport={transport}: this job's Horovod does not use it; was it started by another?")


def environment(case: Case, settings: HorovodSettings) -> dict[str, str]:
    """The variables that carry the settings to Horovod."""
    operations = "mpi" if case.transport == "mpi" else "gloo"
    return {
        "HOROVOD_FUSION_THRESHOLD": str(round(settings.fusion_threshold_mb * 2**20)),
        "HOROVOD_CYCLE_TIME": repr(settings.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": str(settings.cache_capacity),
        "HOROVOD_CPU_OPERATIONS": operations,
        "HOROVOD_CONTROLLER": os.environ.get("HOROVOD_CONTROLLER", operations),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(round(case.limit_s)),
    }
