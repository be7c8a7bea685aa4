"""torch's DistributedDataParallel over its own process groups (gloo, NCCL)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benches.engines.base import PATIENCE_S, Engine, Trainer
from benches.errors import UserError
from benches.spec import Case, DdpSettings

REBUILT = 1
"""Reductions before those of the buckets that stay, in the order in which gradients arrived in the first."""
POWERSGD_START = STATIC = 2
"""Reductions that PowerSGD leaves alone: the least it takes, for DDP rebuilds its buckets after the first. And those
after which a static graph reduces during backward, no longer behind it."""
REST_MB = 25.0
"""torch's default for buckets after the first."""


class DdpTrainer(Trainer):
    """The reduction runs in hooks during backward and is done when backward returns."""

    model: DistributedDataParallel

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: DdpSettings) -> None:
        super().__init__(model, optimizer)
        # Unused parameters make the order unreliable, so torch never rebuilds the buckets then.
        self.rebuilds = not settings.find_unused_parameters
        self.rehearsals = rehearsals(settings)

    def accumulating(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()

    def settled(self) -> bool:
        return not self.rebuilds or bool(self._log().get("has_rebuilt_buckets"))

    def describe(self) -> dict[str, Any]:
        log = self._log()
        rebuilt = _sizes(log.get("rebuilt_bucket_sizes"))
        sizes = rebuilt or _sizes(log.get("bucket_sizes"))
        # torch leaves out a switch that is off.
        switches = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
        return {
            "bucket_cap_bytes": log.get("bucket_cap_bytes"),
            "comm_hook": log.get("comm_hook"),
            **{name: bool(log.get(name)) for name in switches},
            "broadcast_buffers": bool(getattr(self.model, "forward_sync_buffers", self.model.broadcast_buffers)),
            "bucket_sizes_bytes": sizes,
            "buckets_rebuilt": bool(rebuilt),
            "messages_per_step": len(sizes),
        }

    def _log(self) -> dict[str, Any]:
        # torch's own account of what DDP does; there is no public one of the rebuilt buckets.
        return dict(self.model._get_ddp_logging_data())  # type: ignore[no-untyped-call]


class DdpEngine(Engine):
    """DDP over the process group named by the case's transport."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        assert case.ddp is not None
        assert case.transport is not None
        self.settings = case.ddp
        self.powersgd: PowerSGDState | None = None
        if case.transport == "nccl":
            # The watchdog's own patience, apart from the group's; read when the group is made.
            os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(round(PATIENCE_S))
        self._join(timedelta(seconds=PATIENCE_S))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        settings = self.settings
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            **bucket_options(settings),
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            static_graph=settings.static_graph,
            find_unused_parameters=settings.find_unused_parameters,
            **buffer_option(settings.broadcast_buffers),
        )
        self._register_hook(wrapped)
        return DdpTrainer(wrapped, optimizer, settings)

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.summing(tensor)()
        tensor /= self.world_size

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        return partial(dist.all_reduce, tensor)

    def barrier(self) -> None:
        if self.device.type == "cuda":
            dist.barrier(device_ids=[self.device.index])
        else:
            dist.barrier()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        source = tensor.contiguous()
        gathered = [torch.empty_like(source) for _ in range(self.world_size)]
        dist.all_gather(gathered, source)
        return gathered

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows)
        return received

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"backend": dist.get_backend(), "timeout_s": PATIENCE_S}
        if self.case.transport == "nccl":
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["nccl_version"] = ".".join(map(str, version))
            options: Any = dist.distributed_c10d._get_default_group()._get_backend(self.device).options
            found["is_high_priority_stream"] = options.is_high_priority_stream
        if self.powersgd is not None:
            found["powersgd_rank"] = self.powersgd.matrix_approximation_rank
        return found

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _join(self, limit: timedelta) -> None:
        """Make the default process group."""
        dist.init_process_group(self.case.transport, timeout=limit, pg_options=self._group_options(limit))

    def _group_options(self, limit: timedelta) -> Any:
        """Options of the process group; None: torch's own."""
        if not self.settings.is_high_priority_stream:
            return None
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = limit
        return options

    def _register_hook(self, wrapped: DistributedDataParallel) -> None:
        hook = self.settings.comm_hook
        if hook == "powersgd":
            _refuse_scalars(wrapped.module)
            self.powersgd = PowerSGDState(None, self.settings.powersgd_rank, start_powerSGD_iter=POWERSGD_START)
            wrapped.register_comm_hook(self.powersgd, powerSGD_hook)
        elif hook is not None:
            halves = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
            wrapped.register_comm_hook(None, halves[hook])


def rehearsals(settings: DdpSettings) -> int:
    """Reductions until all further ones are alike."""
    if settings.comm_hook == "powersgd":
        return POWERSGD_START
    if settings.static_graph:
        return STATIC
    return 0 if settings.find_unused_parameters else REBUILT


def _refuse_scalars(model: nn.Module) -> None:
    """Raise UserError for a parameter that has no first dimension, on which torch's PowerSGD would fail later."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.dim() == 0]
    if names:
        raise UserError(f"ddp.comm_hook=powersgd: cannot take scalar parameters, such as {names[0]}; fp16, bf16, null")


def bucket_options(settings: DdpSettings) -> dict[str, Any]:
    """DDP's options on the sizes of its buckets. Raises UserError where the installed torch cannot set the first."""
    cap, first = settings.bucket_cap_mb, settings.first_bucket_mb
    if first is None:
        return {"bucket_cap_mb": cap}
    if not sets_first_bucket():
        raise UserError(f"ddp.first_bucket_mb={first:g}: torch {torch.__version__} cannot set it; takes null")
    # The last of the list holds for all further buckets.
    return {"bucket_cap_mb_list": [first, cap or REST_MB]}


def sets_first_bucket() -> bool:
    """Whether the installed torch takes a list of sizes."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters


def buffer_option(broadcast: bool) -> dict[str, Any]:
    """DDP's option that broadcasts buffers at each forward, by the name that the installed torch gives it."""
    # Renamed in torch 2.13; under the old name, false also leaves the buffers out of the first synchronisation.
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": broadcast}


def _sizes(text: object) -> list[int]:
    """Bytes of each bucket, from torch's `"123, 456"`."""
    return [int(size) for size in str(text or "").split(",") if size.strip()]
