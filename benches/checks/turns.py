"""One rank of a launch in which our worker and a bare script take turns, block by block. Seconds throughout.

The rank is our worker's own (engine, parity gate, warm-up, timed loop); beside its step it loads the script's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benches import agent, worker
from benches.checks import TURNS
from benches.engines.base import Engine, Trainer
from benches.link import Link
from benches.loop import Timer, without_collections
from benches.rank import Launch
from benches.spec import load_case
from benches.workloads.data import make_batches
from benches.workloads.references import one_line
from benches.workloads.train import TrainStep, Workload

SIDES = ("ours", "theirs")


class Turns(Launch):
    """Our worker, with the script's step beside its own."""

    def _time(self, trainer: Trainer, workload: Workload) -> Timer:
        case, engine = self.case, self.engine
        self._phase("setup")
        theirs = load_step(self.options.script, self.options.model)
        ours = TrainStep(workload, trainer, make_batches(case, engine.rank, engine.world_size, engine.device))
        timer = Timer(engine, ours, ours.prepare)
        self._phase("warmup")
        timer.warm_up(case.warmup_steps, trainer.settled)
        run_block(engine, theirs, case.warmup_steps)
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        for block in range(self.options.rounds):
            self._phase("timing", block)
            for side in order(self.options.launch, block):
                if side == "ours":
                    found[side].append(timer.run_block(block, case.block_steps))
                else:
                    found[side].append(run_block(engine, theirs, case.block_steps))
        self._save(found)
        return timer

    def _save(self, found: dict[str, list[float]]) -> None:
        """Rank 0 writes each side's block seconds, by block and rank. Collective."""
        ranks = self.engine.gather_json(found)
        if self.engine.rank == 0:
            blocks = {side: list(zip(*(one[side] for one in ranks), strict=True)) for side in SIDES}
            # Whole or not there, for a run that goes on with what is there.
            temporary = self.options.out / f"{TURNS}.tmp"
            temporary.write_text(json.dumps(blocks))
            temporary.replace(self.options.out / TURNS)


def order(launch: int, block: int) -> tuple[str, ...]:
    """Who runs first, by turns: over two blocks, and over two launches, each side is first once."""
    return SIDES if (launch + block) % 2 == 0 else SIDES[::-1]


def run_block(engine: Engine, step: Callable[[], object], steps: int) -> float:
    """Seconds of a block of the script's steps, between barriers as ours, with no mark between its steps.

    Garbage collection is off as in our blocks: left on, it would make the script slower and us look better.
    """
    with without_collections():
        engine.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = time.perf_counter() - start
    engine.barrier()
    return seconds


def load_step(script: Path, model: str) -> Callable[[], object]:
    """Import the script, called with one argument, the model, and return its `step`."""
    spec = importlib.util.spec_from_file_location(f"bare_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with joined(), mock.patch.object(sys, "argv", [str(script), model]):
        spec.loader.exec_module(module)
    return module.step  # type: ignore[no-any-return]


@contextmanager
def joined() -> Iterator[None]:
    """Within it a script joins the job that its process is in already; Horovod's `init` does so by itself."""
    with ExitStack() as stack:
        if torch.distributed.is_initialized():
            stack.enter_context(mock.patch.object(torch.distributed, "init_process_group"))
        if "horovod.torch" in sys.modules:
            hvd = sys.modules["horovod.torch"]
            stack.enter_context(mock.patch.object(hvd, "DistributedOptimizer", _renaming(hvd.DistributedOptimizer)))
        yield


def _renaming(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's wrapper with the parameters under names of their own: it knows tensors by name alone."""

    def renamed(optimizer: Any, named_parameters: Any) -> Any:
        return wrap(optimizer, named_parameters=[(f"bare.{name}", p) for name, p in named_parameters])

    return renamed


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The worker's options, with the script and its model."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--model", required=True)
    own, rest = parser.parse_known_args(arguments)
    return argparse.Namespace(**vars(own), **vars(worker.parse(rest)))


def work(options: argparse.Namespace, link: Link) -> int:
    """Run this rank and return its exit status; an error is printed and noted for the agent."""
    try:
        return Turns(load_case(options.case), options, link).run()
    except Exception as error:
        traceback.print_exc()
        link.say(error=one_line(error))
        return 1


def main() -> int:
    """Run one rank under its agent."""
    options = parse()
    return agent.supervise(lambda link: work(options, link), options.out)


if __name__ == "__main__":
    sys.exit(main())
