"""Horovod's timeline of a few steps, taken after everything that is timed.

Horovod can only trace where it was told so at `init`; from then on a thread of rank 0 spins for work, which would
change every timed step. So it is started a second time for the trace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches import timeline
from benches.engines.base import Engine
from benches.spec import HorovodSettings

UNTRACED_STEPS, TRACED_STEPS = 2, 4
"""Those before the traced ones fill the response cache."""
CYCLE_TIME = "HOROVOD_CYCLE_TIME"
DEFAULT_CYCLE_MS = 1.0
RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
"""Where Horovod's ranks find each other over gloo, as horovodrun tells them."""
MPI_THREAD_MULTIPLE = 3
"""The same number in Open MPI and MPICH."""


def can_restart(settings: HorovodSettings) -> bool:
    """Whether Horovod started under `restartable` takes a second `init`.

    Not where it was tuned: the settings that it found are then missing from the vector, too.
    """
    return settings.cycle_time_ms == DEFAULT_CYCLE_MS and not settings.autotune


@contextmanager
def restartable(settings: HorovodSettings) -> Iterator[None]:
    """Around the first `init`: hides a cycle time that is the default anyway.

    Horovod dies in a second `init` where both cycle time and fusion threshold stood in the environment of the first:
    it then writes a default into a vector that holds neither of them any more (BayesianParameter::SetValue in
    horovod/common/parameter_manager.cc, 0.28.1).
    """
    hidden = os.environ.pop(CYCLE_TIME, None) if can_restart(settings) else None
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[CYCLE_TIME] = hidden


def messages(engine: Engine, hvd: Any, steps: Callable[[int], None]) -> dict[str, Any]:
    """Restart Horovod, trace some steps, and say what messages they sent; rank 0 alone has the timeline. Collective."""
    with _fresh_rendezvous(engine), tempfile.TemporaryDirectory(prefix="ringduel-timeline-") as folder:
        hvd.shutdown()
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        hvd.init()
        path = Path(folder) / "timeline.json"
        steps(UNTRACED_STEPS)
        hvd.start_timeline(str(path))
        hvd.barrier()
        steps(TRACED_STEPS)
        hvd.barrier()
        hvd.stop_timeline()
        return timeline.summary(path.read_bytes()) if path.exists() else {}


@contextmanager
def _fresh_rendezvous(engine: Engine) -> Iterator[None]:
    """A key-value store of our own on rank 0's host, where gloo's ranks find each other again.

    horovodrun's may still hold addresses of the first time: it forgets the count of ranks that have left a scope when
    another scope is done (`RendezvousHandler.do_DELETE` in horovod/runner/http/http_server.py, 0.28.1).
    """
    if RENDEZVOUS[0] not in os.environ:
        yield
        return
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer() if engine.rank == 0 else None
    places = engine.gather_json([socket.gethostname(), server.start() if server else 0])
    host = places[0][0] if len({name for name, _ in places}) > 1 else "127.0.0.1"
    os.environ.update(zip(RENDEZVOUS, (host, str(places[0][1])), strict=True))
    try:
        yield
    finally:
        if server:
            server.stop()


def own_mpi() -> ctypes.CDLL:
    """Initialise MPI as Horovod would, in the library that it is linked to. Whoever calls this must call MPI_Finalize.

    Otherwise Horovod's first `shutdown` finalises MPI, and no second `init` is possible in the process.
    """
    from horovod.torch import mpi_lib_v2

    library = ctypes.CDLL(mpi_lib_v2.__file__)
    library.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    return library
