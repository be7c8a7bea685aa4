"""For the tests of DDP over MPI: a fault in the thread that calls MPI, and what each rank checks of itself."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from running import make_case
from zoo import Mixed

from benches import engines, rankenv
from benches.engines.ddp_mpi import DdpMpiEngine, Wire


def torn(call: int) -> Mixed:
    """The mixed model; on rank 1 the sum of number `call` fails in the thread."""
    calls = iter(range(10**9))
    original = Wire.summing

    def summing(self: Wire, tensor: torch.Tensor) -> Callable[[], object]:
        if rankenv.rank() == 1 and next(calls) == call:
            raise OSError("a planted fault of the wire")
        return original(self, tensor)

    Wire.summing = summing  # type: ignore[method-assign]
    return Mixed()


def main(out: Path) -> None:
    """Join, average tensors of every type, leave; write what was seen into `out`.

    No model is wrapped: DDP itself holds on to the process group, and to its ports, until the process ends.
    """
    engine = engines.join(make_case("ddp", "mpi", int(sys.argv[2])))
    assert isinstance(engine, DdpMpiEngine)
    seen: dict[str, Any] = {"described": engine.describe(), "errors": errors(engine)}
    mpi, rank = engine.wire.mpi, engine.rank
    engine.close()
    seen["finalised"] = mpi.Is_finalized()
    seen["threads"] = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    seen["listening"] = [c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
    (out / f"{rank}.json").write_text(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)


def errors(engine: DdpMpiEngine) -> dict[str, float]:
    """By type, the largest error of the average over the ranks of each rank's random numbers, in units of γ's bound."""
    found = {}
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        terms = [
            torch.randn(70_001, generator=torch.Generator().manual_seed(r)).to(kind) for r in range(engine.world_size)
        ]
        own = terms[engine.rank].clone()
        engine.thread.submit(own).wait()
        exact = torch.stack(terms).double()
        allowed = (engine.world_size + 1) * torch.finfo(kind).eps / 2 * exact.abs().mean(0)
        found[str(kind)] = float(((own.double() - exact.mean(0)).abs() / allowed).max())
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
