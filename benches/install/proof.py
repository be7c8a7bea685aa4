"""Proof of a build: an all-reduce between two ranks on each transport, started as a study would start it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator

from benches.install import BuildError
from benches.install.steps import Steps, first_error
from launchers import horovodrun, mpirun
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT, run
from launchers.tools import Tools

RANKS = 2
LIMIT_S = 300.0


def commands(transports: list[str], tools: Tools) -> Iterator[tuple[str, Command]]:
    """The command of each transport's proof."""
    for transport in transports:
        spec = LaunchSpec(
            python=sys.executable,
            args=("-m", "benches.install.proof", transport),
            nodes=1,
            ranks_per_node=RANKS,
            cwd=str(CHECKOUT),
            yield_when_idle=True,
            as_root=os.geteuid() == 0,
        )
        if transport == "mpi":
            yield transport, mpirun.command(spec, tools.mpi(sys.executable))
        else:
            yield transport, horovodrun.command(spec, tools.horovodrun(sys.executable))


def prove(transports: list[str], steps: Steps) -> None:
    """Raises BuildError where two ranks do not get the right sum over each transport."""
    for transport, command in commands(transports, Tools()):
        steps.say(f"prove: all-reduce of {RANKS} ranks over {transport}")
        log = steps.work / f"proof-{transport}.log"
        outcome = run(command, log=log, limit_s=LIMIT_S, token=uuid.uuid4().hex, stop=steps.stop)
        said = log.read_text(errors="replace")
        steps.note(f"$ {command.text()}\n{said}")
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "ok":
            cause = first_error(said) if said.strip() else outcome.reason
            raise BuildError(f"all-reduce over {transport}: {outcome.reason}: {cause}; log: {steps.log}")


def rank(transport: str) -> None:
    """One rank: join, add, compare. Raises RuntimeError where something is not as asked for."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    if hvd.size() != RANKS:
        raise RuntimeError(f"world size {hvd.size()} where {RANKS} was asked for: Horovod has another MPI than mpirun")
    enabled = hvd.mpi_enabled() if transport == "mpi" else hvd.gloo_enabled()
    if not enabled:
        raise RuntimeError(f"Horovod did not take {transport}")
    device = torch.device("cuda", hvd.local_rank()) if transport == "nccl" else torch.device("cpu")
    # Values that no rank holds by itself; sums of two small integers are exact.
    mine = torch.arange(1000, device=device, dtype=torch.float32) + 1000 * hvd.rank()
    total = hvd.allreduce(mine, op=hvd.Sum)
    if not torch.equal(total, 2 * torch.arange(1000, device=device, dtype=torch.float32) + 1000):
        raise RuntimeError(f"wrong sum over {transport}")
    hvd.shutdown()


if __name__ == "__main__":
    rank(sys.argv[1])
