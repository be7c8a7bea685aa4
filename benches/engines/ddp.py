"""torch's DistributedDataParallel over its own process groups (gloo, NCCL)."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benches.engines.base import Engine, Trainer
from benches.spec import Case, DdpSettings


class DdpTrainer(Trainer):
    """The reduction runs in hooks during backward and is done when backward returns."""

    model: DistributedDataParallel

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: DdpSettings) -> None:
        super().__init__(model, optimizer)
        # Unused parameters make the order unreliable, so torch never rebuilds the buckets then.
        self.rebuilds = not settings.find_unused_parameters

    def settled(self) -> bool:
        return not self.rebuilds or bool(self._log().get("has_rebuilt_buckets"))

    def describe(self) -> dict[str, Any]:
        log = self._log()
        rebuilt = _sizes(log.get("rebuilt_bucket_sizes"))
        sizes = rebuilt or _sizes(log.get("bucket_sizes"))
        names = ("bucket_cap_bytes", "broadcast_buffers", "gradient_as_bucket_view", "static_graph")
        read_back = {name: log[name] for name in (*names, "find_unused_parameters") if name in log}
        return {
            **read_back,
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
        dist.init_process_group(case.transport, timeout=timedelta(seconds=case.limit_s))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        settings = self.settings
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=settings.bucket_cap_mb,
            gradient_as_bucket_view=settings.gradient_as_bucket_view,
            static_graph=settings.static_graph,
            find_unused_parameters=settings.find_unused_parameters,
            **buffer_option(settings.broadcast_buffers),
        )
        return DdpTrainer(wrapped, optimizer, settings)

    def allreduce(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor /= self.world_size

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

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"backend": dist.get_backend()}
        if self.case.transport == "nccl":
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["nccl_version"] = ".".join(map(str, version))
        return found

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def buffer_option(broadcast: bool) -> dict[str, Any]:
    """DDP's option that broadcasts buffers at each forward, by the name that the installed torch gives it."""
    # Renamed in torch 2.13; under the old name, false also leaves the buffers out of the first synchronisation.
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": broadcast}


def _sizes(text: object) -> list[int]:
    """Bytes of each bucket, from torch's `"123, 456"`."""
    return [int(size) for size in str(text or "").split(",") if size.strip()]
