"""Run by every rank of one launch: several cases one after the other, each through the gate and a few steps.

Usage: knob_ranks.py CASES.json OUT.json. One launch for many settings, since a start costs seconds. The job is joined
once, as the first case says: what an engine reads while joining must be the same in all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benches import engines, parity
from benches.engines.base import Engine
from benches.spec import Case, build, plain
from benches.workloads.data import make_batches
from benches.workloads.train import TrainStep, Workload, bare_model, make_optimizer, set_numerics

STEPS = 5


def main() -> None:
    cases = [build(Case, content) for content in json.loads(Path(sys.argv[1]).read_text())]
    engine = engines.join(cases[0])
    for kind in (torch.float16, torch.float32, torch.float64):
        for width in (1, 70_001):
            check_exchange(engine, kind, width)
    found = [look_at(engine, case) for case in cases]
    if engine.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    engine.close()


def look_at(engine: Engine, case: Case) -> dict[str, Any]:
    """The gate's verdict, what the libraries say after a few steps, and seconds of one reduction."""
    engine.case = case
    engine.settings = getattr(case, case.engine)  # type: ignore[attr-defined]
    set_numerics(case)
    workload = Workload(case, engine.device)
    model, twin = bare_model(case, engine.device), bare_model(case, engine.device)
    trainer = engine.prepare(model, make_optimizer(list(model.parameters()), case.optimizer))
    verdict = parity.check(engine, workload, trainer, twin)
    step = TrainStep(workload, trainer, make_batches(case, engine.rank, engine.world_size, engine.device))
    step.prepare(0, STEPS)
    losses = [float(step(number)) for number in range(STEPS)]
    return {
        "parity": plain(verdict),
        "effective": {**engine.describe(), **trainer.describe()},
        "settled": trainer.settled(),
        "iteration": trainer._log().get("iteration") if case.engine == "ddp" else None,  # type: ignore[attr-defined]
        "losses": losses,
        "reduction_s": seconds_of_a_reduction(engine),
    }


def check_exchange(engine: Engine, kind: torch.dtype, width: int) -> None:
    """Row i goes to rank i, and comes to lie in the row of its sender."""
    ranks = engine.world_size
    rows = [torch.full((width,), 10.0 * engine.rank + receiver, dtype=kind) for receiver in range(ranks)]
    received = engine.exchange(torch.stack(rows))
    expected = [torch.full((width,), 10.0 * sender + engine.rank, dtype=kind) for sender in range(ranks)]
    assert torch.equal(received, torch.stack(expected)), (kind, received[:, 0])


def seconds_of_a_reduction(engine: Engine) -> float:
    """The slowest of a few: the quickest may be of a rank that came late, when the next cycle was about to start."""
    tensor = torch.zeros(1)
    taken = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.allreduce(tensor)
        taken.append(time.perf_counter() - start)
    return max(taken)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # As a rank ends: a process group that DDP holds on to has threads, which abort an ordinary exit now and then.
    os._exit(0)
