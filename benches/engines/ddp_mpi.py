"""DDP over MPI: each bucket goes through a Python thread to mpi4py's Allreduce, on a communicator of its own.

The process group is gloo on the same ranks: it carries what DDP sends beside gradients (buffers, the map of unused
parameters) and the barriers. Needs an mpirun, and an MPI with MPI_THREAD_MULTIPLE.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benches.engines.hook import LEAVE_S, Average, HookedDdpEngine, scale
from benches.errors import UserError

POLL_S = 0.001


class DdpMpiEngine(HookedDdpEngine):
    """DDP whose gradients travel over MPI."""

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        # In the calling thread: outside of backward the other one is idle, and no call shares the communicator.
        return self.wire.summing(tensor)

    def describe(self) -> dict[str, Any]:
        mpi = self.wire.mpi
        return {
            **super().describe(),
            "mpi": mpi.Get_library_version().split(",")[0].splitlines()[0],
            "mpi_thread_level": level_name(mpi, mpi.Query_thread()),
            "mpi_cuda_aware": self.wire.cuda_aware,
        }

    def close(self) -> None:
        """Leave together with the other ranks; without them where they do not come, or where the thread failed: MPI is
        then not finalised, by which mpirun knows that something went wrong, and ends the rest."""
        together = self.thread.stop(LEAVE_S) and self.thread.error is None and self.wire.all_there(LEAVE_S)
        if together:
            self.wire.close()
        super().close()

    def _join(self, limit: timedelta) -> None:
        self.wire = Wire(start_mpi())
        comm = self.wire.comm
        store = open_store(comm, limit)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=limit)

    def _average(self) -> Average:
        return self.wire.average


class Wire:
    """Sums over the ranks on a duplicated communicator. One thread at a time may call it."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.comm = mpi.COMM_WORLD.Dup()
        self.comm.Set_errhandler(mpi.ERRORS_RETURN)  # mpi4py makes exceptions of them
        self.cuda_aware = cuda_aware(mpi)
        self._halves = {kind: mpi.Op.Create(_adder(kind), commute=True) for kind in (torch.float16, torch.bfloat16)}
        self._pinned = torch.empty(0)
        self._copied: Any = None

    def average(self, tensor: torch.Tensor) -> None:
        """Divide by the number of ranks, then sum, as DDP does."""
        scale(tensor, 1 / self.comm.size)
        self.summing(tensor)()

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        """What replaces a contiguous tensor by its sum over the ranks at each call."""
        if tensor.device.type == "cpu":
            return self._summing_on_host(tensor)
        if self.cuda_aware and tensor.dtype not in self._halves:
            return partial(self._sum_on_device, tensor)
        return partial(self._sum_staged, tensor)

    def all_there(self, limit_s: float) -> bool:
        """Whether every rank calls this within `limit_s`."""
        arrived, deadline = self.comm.Ibarrier(), time.monotonic() + limit_s
        while not arrived.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Give everything back and finalise MPI. Collective."""
        for operation in self._halves.values():
            operation.Free()
        self.comm.Free()
        self.mpi.Finalize()

    def _summing_on_host(self, tensor: torch.Tensor) -> Callable[[], object]:
        # MPI has no 16-bit floats: they travel as integers of their size, so that as many bytes move as over gloo, and
        # an operation of ours adds them. Staging in fp32 would move twice the bytes.
        operation = self._halves.get(tensor.dtype)
        if operation is None:
            return partial(self.comm.Allreduce, self.mpi.IN_PLACE, tensor.numpy())
        return partial(self.comm.Allreduce, self.mpi.IN_PLACE, tensor.view(torch.int16).numpy(), operation)

    def _sum_on_device(self, tensor: torch.Tensor) -> None:
        torch.cuda.current_stream().synchronize()
        self.comm.Allreduce(self.mpi.IN_PLACE, tensor)

    def _sum_staged(self, tensor: torch.Tensor) -> None:
        """Through pinned memory, one buffer for all, used in the order of the current stream."""
        host, stream = self._staging(tensor), torch.cuda.current_stream()
        if self._copied is not None:
            stream.wait_event(self._copied)
        host.copy_(tensor, non_blocking=True)
        stream.synchronize()
        self._summing_on_host(host)()
        tensor.copy_(host, non_blocking=True)
        self._copied = stream.record_event()

    def _staging(self, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.numel() * tensor.element_size()
        if self._pinned.numel() < size:
            if self._copied is not None:
                self._copied.synchronize()  # the buffer that is let go may still be read
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._pinned[:size].view(tensor.dtype).view(tensor.shape)


def start_mpi() -> Any:
    """mpi4py's MPI, initialised so that every thread may call it; whoever calls this finalises it.

    mpi4py loads the libmpi that MPI4PY_LIBMPI names, which the launcher sets to that of its mpirun. Raises UserError.
    """
    import mpi4py

    # At the end of the process is too late: a rank ends by os._exit.
    mpi4py.rc(initialize=False, finalize=False)
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    level = MPI.Query_thread()
    if level != MPI.THREAD_MULTIPLE:
        found, library = level_name(MPI, level), os.environ.get("MPI4PY_LIBMPI", "libmpi")
        raise UserError(
            f"transport=mpi: DDP over MPI needs MPI_THREAD_MULTIPLE, and {library} gives thread level {found}; "
            f"take another MPI, or transport=gloo"
        )
    return MPI


def open_store(comm: Any, limit: timedelta) -> Any:
    """torch's key-value store on a free port of rank 0's host, which the others learn over MPI."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    hosts = comm.allgather(socket.gethostname())
    host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    if comm.rank == 0:
        store = TCPStore(host, 0, comm.size, True, limit, wait_for_workers=False)
        comm.bcast(store.port)
        return store
    return TCPStore(host, comm.bcast(None), comm.size, False, limit)


def level_name(mpi: Any, level: int) -> str:
    """MPI's thread level in words."""
    names = ("single", "funneled", "serialized", "multiple")
    return {getattr(mpi, f"THREAD_{name.upper()}"): name for name in names}[level]


def cuda_aware(mpi: Any) -> bool:
    """Whether MPI takes device memory, by the question that Open MPI and MPICH answer."""
    question = getattr(ctypes.CDLL(mpi.__file__), "MPIX_Query_cuda_support", None)
    return bool(question is not None and question())


def _adder(kind: torch.dtype) -> Any:
    """An MPI operation on memory that holds numbers of this type."""

    def add(received: Any, total: Any, _datatype: Any) -> None:
        torch.frombuffer(total, dtype=kind).add_(torch.frombuffer(received, dtype=kind))

    return add
