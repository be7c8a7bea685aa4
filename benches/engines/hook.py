"""DDP's buckets through one Python thread: how DDP goes over MPI, and over gloo to measure what the way itself costs.

DDP hands buckets over in the same order on every rank; the thread reduces them one by one, in that order.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benches.engines.base import PATIENCE_S
from benches.engines.ddp import DdpEngine
from benches.spec import Case

LEAVE_S = 5.0
"""Time that a rank waits for its thread, and for the other ranks, before it leaves without them."""

Average = Callable[[torch.Tensor], None]
"""Replaces a contiguous tensor by its average over the ranks."""
Done = torch.futures.Future[torch.Tensor]


class BucketThread:
    """One thread that averages tensors in the order in which they are submitted."""

    def __init__(self, average: Average, device: torch.device) -> None:
        self.error: Exception | None = None
        """The first failure; every later tensor fails with it too, as the ranks are then out of step."""
        self._average, self._device = average, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._jobs: SimpleQueue[tuple[torch.Tensor, Done, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ringduel-buckets", daemon=True)
        self._thread.start()

    def submit(self, tensor: torch.Tensor) -> Done:
        """Average `tensor` in place, later. The future holds the same tensor, or raises what the thread raised."""
        on_cuda = self._stream is not None
        done: Done = torch.futures.Future(devices=[self._device] if on_cuda else None)
        written = torch.cuda.current_stream(self._device).record_event() if on_cuda else None
        self._jobs.put((tensor, done, written))
        return done

    def stop(self, limit_s: float) -> bool:
        """End the thread after what was submitted; whether it ended within `limit_s`."""
        self._jobs.put(None)
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        with self._on_stream():
            while (job := self._jobs.get()) is not None:
                self._reduce(*job)

    def _reduce(self, tensor: torch.Tensor, done: Done, written: Any) -> None:
        try:
            if self.error is not None:
                raise self.error
            if written is not None:
                written.wait()
            self._average(tensor)
        except Exception as error:
            self.error = error
            # A plain one: on CUDA a future pickles what it holds. DDP reads the future in C++, to which an exception is
            # a value that is no tensor: backward raises "Unable to cast OSError: … to Tensor". To have the future raise
            # by itself takes a callback (`then`), which costs each bucket 20 µs, as much as all else here.
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))  # type: ignore[arg-type]
        else:
            done.set_result(tensor)

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()


def through_thread(
    state: BucketThread,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook; DDP asks for these names of its arguments."""
    return state.submit(bucket.buffer())


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place, before the sum, as DDP does. In NumPy where it knows the type: torch would open a pool of
    compute threads for the calling thread, beside the rank's own."""
    if tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64):
        array = tensor.numpy()
        np.multiply(array, array.dtype.type(factor), out=array)
    else:
        tensor.mul_(factor)


class HookedDdpEngine(DdpEngine):
    """DDP over gloo, by way of the thread: the control that measures the hook's own cost."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.thread = BucketThread(self._average(), self.device)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "hook": "python thread"}

    def close(self) -> None:
        """Leave the job. Raises what the thread raised, of which backward said only that it is no tensor."""
        self.thread.stop(LEAVE_S)
        super().close()
        if self.thread.error is not None:
            raise self.thread.error

    def _average(self) -> Average:
        """What the thread calls. Over a group of its own: the main thread uses the other at the same time."""
        group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))

        def average(tensor: torch.Tensor) -> None:
            scale(tensor, 1 / self.world_size)
            group.allreduce([tensor]).wait()

        return average

    def _register_hook(self, wrapped: DistributedDataParallel) -> None:
        wrapped.register_comm_hook(self.thread, through_thread)
