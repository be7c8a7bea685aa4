"""Horovod over its gloo, MPI and NCCL operations."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benches.engines import horovod_trace
from benches.engines.base import PATIENCE_S, Engine, Trainer
from benches.engines.horovod_tune import SEARCHED, Autotuner
from benches.errors import UserError
from benches.spec import Case, HorovodSettings

TASKS = Path("/proc/self/task")
"""Threads of this process, by number."""


class HorovodTrainer(Trainer):
    """The reduction starts in hooks during backward; `step` waits for it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: HorovodEngine) -> None:
        super().__init__(model, optimizer)
        self.engine = engine

    def tune(self, steps: Callable[[int], None]) -> None:
        # One rank sends nothing that could be tuned.
        if self.engine.autotuner is not None and self.engine.world_size > 1:
            self.engine.autotuner.run(self.engine, steps)

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

    def describe(self) -> dict[str, Any]:
        optimizer: Any = self.optimizer
        groups = {id(group) for group in optimizer._p_to_group.values()}
        return {
            "backward_passes_per_step": optimizer.backward_passes_per_step,
            "gradient_predivide_factor": optimizer.gradient_predivide_factor,
            "compression": optimizer._compression.__name__.removesuffix("Compressor").lower(),
            "groups": len(groups) or None,
            **(self.engine.autotuner.describe() if self.engine.autotuner is not None else {}),
        }


class HorovodEngine(Engine):
    """Horovod with the case's settings, which it reads from the environment once, at `init`."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        assert case.horovod is not None
        self.settings = case.horovod
        self.autotuner = Autotuner(case.horovod) if case.horovod.autotune else None
        self.variables = environment(case, case.horovod)
        if self.autotuner is not None:
            self.variables |= self.autotuner.variables
            os.environ.update(self.autotuner.log_variable)
        os.environ.update(self.variables)
        import horovod.torch as hvd

        self.hvd = hvd
        self.mpi = horovod_trace.own_mpi() if case.uses_mpi and case.trace_messages else None
        before = threads()
        with horovod_trace.restartable(self.settings) if case.trace_messages else nullcontext():
            hvd.init()
        self.bound = core_of(threads() - before)
        self.rank, self.world_size = hvd.rank(), hvd.size()
        self._check_transport()
        self._check_affinity()

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        # The optimizer is fresh and equal on all ranks; broadcast_optimizer_state would first take a step with zero
        # gradients to create its state, which counts as a step of Adam and makes another update than DDP's.
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        wrapped = self.hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=getattr(self.hvd.Compression, self.settings.compression),
            backward_passes_per_step=self.case.accumulation_steps,
            gradient_predivide_factor=self.settings.gradient_predivide_factor,
            groups=self.settings.groups,
        )
        return HorovodTrainer(model, wrapped, self)

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Average, name="ringduel.allreduce")

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        return partial(self.hvd.allreduce_, tensor, op=self.hvd.Sum, name="ringduel.sum")

    def barrier(self) -> None:
        self.hvd.barrier()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        rows = self.hvd.allgather(tensor.contiguous().unsqueeze(0), name="ringduel.gather")
        return list(rows.unbind(0))

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        return self.hvd.alltoall(rows, name="ringduel.exchange")  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        hvd = self.hvd
        return {
            "controller": "mpi" if hvd.mpi_enabled() else "gloo",
            "mpi_threads_supported": bool(hvd.mpi_enabled() and hvd.mpi_threads_supported()),
            "thread_affinity": self.bound,
            "environment": {name: os.environ[name] for name in self.variables},
        }

    def messages(self, steps: Callable[[int], None]) -> dict[str, Any]:
        # One rank sends nothing; messages in several streams overlap and cannot be told apart.
        untold = self.world_size == 1 or self.settings.num_nccl_streams > 1
        if untold or not horovod_trace.can_restart(self.settings):
            return {}
        return horovod_trace.messages(self, self.hvd, steps)

    def close(self) -> None:
        self.hvd.shutdown()
        if self.mpi is not None:
            self.mpi.MPI_Finalize()

    def _check_transport(self) -> None:
        """Raise RuntimeError when Horovod travels over something else than the case says."""
        enabled = {"gloo": self.hvd.gloo_enabled, "mpi": self.hvd.mpi_enabled, "nccl": self.hvd.nccl_built}
        transport = str(self.case.transport)
        if not enabled[transport]():
            raise RuntimeError(f"transport={transport}: this job's Horovod does not use it; was it started by another?")

    def _check_affinity(self) -> None:
        """Raise UserError where the background thread is not on the core that the case gives it."""
        asked = self.settings.thread_affinity
        if asked is not None and self.bound != int(asked.split(",")[self.local_rank]):
            raise UserError(
                f"horovod.thread_affinity={asked}: local rank {self.local_rank} is not on its core; this host has "
                f"cores {sorted(os.sched_getaffinity(0))}"
            )


def threads() -> set[int]:
    """Numbers of this process's threads."""
    return {int(task.name) for task in TASKS.iterdir()}


def core_of(started: set[int]) -> int | None:
    """The core to which one of these threads is bound, by the kernel's account; None where none is bound to one."""
    affinities = map(_affinity, sorted(started))
    return next((min(cores) for cores in affinities if len(cores) == 1), None)


def _affinity(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return set()


def environment(case: Case, settings: HorovodSettings) -> dict[str, str]:
    """The variables that carry the settings to Horovod."""
    operations = "mpi" if case.transport == "mpi" else "gloo"
    controller = settings.controller or operations
    variables = {
        "HOROVOD_FUSION_THRESHOLD": str(round(settings.fusion_threshold_mb * 2**20)),
        "HOROVOD_CYCLE_TIME": repr(settings.cycle_time_ms),
        "HOROVOD_CACHE_CAPACITY": str(settings.cache_capacity),
        "HOROVOD_CPU_OPERATIONS": controller if case.transport == "nccl" else operations,
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": str(int(settings.hierarchical_allreduce)),
        "HOROVOD_TORUS_ALLREDUCE": str(int(settings.torus_allreduce)),
        "HOROVOD_DISABLE_GROUP_FUSION": str(int(settings.disable_group_fusion)),
        "HOROVOD_NUM_NCCL_STREAMS": str(settings.num_nccl_streams),
        "HOROVOD_ENABLE_ASYNC_COMPLETION": str(int(settings.enable_async_completion)),
        "HOROVOD_BATCH_D2D_MEMCOPIES": str(int(settings.batch_d2d_memcopies)),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(round(PATIENCE_S)),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(round(PATIENCE_S)),
    }
    if settings.thread_affinity is not None:
        variables["HOROVOD_THREAD_AFFINITY"] = settings.thread_affinity
    if settings.autotune:
        for name in SEARCHED:
            del variables[name]
    return variables
