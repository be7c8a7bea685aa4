"""One rank of a launch: join, prepare, gate, warm up, time, and let rank 0 write the record. Seconds throughout."""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import gc
import math
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo  # Optimizers do at first use, for two seconds: here, before ranks wait busily for each other

from benches import engines, parity, provenance, rankenv, topology
from benches.engines.base import Trainer
from benches.errors import UserError
from benches.header import Block, Header, Load, Parity, Status
from benches.host import cpu_name
from benches.link import Link
from benches.load import Meter
from benches.loop import Timer
from benches.memory import forget_peak, peak_memory_mb, steady_malloc
from benches.nvml import gpu_of
from benches.spec import Case, load_case, plain
from benches.worker import PARITY_FAILED
from benches.workloads import allreduce, datasets, emulated
from benches.workloads.data import make_batches
from benches.workloads.graphs import GraphedStep, leave_default_stream
from benches.workloads.references import one_line
from benches.workloads.train import TrainStep, Workload, bare_model, compiled, optimizer_of, set_numerics

RESUME_STEPS, RESUME_S = 3, 0.05
"""Untimed steps behind a park, and the least time that they take: caches and congestion windows are cold, GPU memory
was freed. Behind three alone, steps of 4 ms over MPI were a fifth slower at first, and less and less so over the next
eight (two ranks on two cores)."""


def run(options: argparse.Namespace, link: Link) -> int:
    """Run this rank and return its exit status. An exception is printed, noted for the agent, and ends in 1."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        return Launch(load_case(options.case), options, link).run()
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, UserError) else one_line(error)
        link.say(error=text, failed_at=time.time())
        return 1


class Launch:
    """The life of one rank of one launch."""

    def __init__(self, case: Case, options: argparse.Namespace, link: Link) -> None:
        self.case, self.options, self.link = case, options, link
        self.started = psutil.Process().create_time()
        self.warnings: list[str] = []
        self.losses: list[float | None] | None = None
        self.setup_s: float | None = None
        self.ranks: list[dict[str, Any]] = []
        self.samples: list[torch.Tensor] | None = None
        self.curve: list[torch.Tensor] | None = None
        self.resume_steps = 0
        self.blocks: list[Block] = []
        self.load: list[Load] = []
        self.beside: list[str] = []
        self.site: dict[str, Any] = {}
        self.emulated: emulated.EmulatedModel | None = None
        self.lateness_s: list[float] = []

    def run(self) -> int:
        set_numerics(self.case)
        if self.case.cuda_graphs:
            leave_default_stream(torch.device("cuda", rankenv.local_rank()))
        self.engine = engines.join(self.case)
        code = self._run()
        # Not after an error: who leaves takes the others down, and must have said why before. The process ends anyway.
        self.engine.close()
        return code

    def _run(self) -> int:
        case, engine = self.case, self.engine
        self._phase("setup")
        self._check_topology()
        workload = Workload(case, engine.device)
        trainer, twin = self._prepare()
        self._phase("parity")
        steady_malloc(give_back=True)
        verdict = parity.check(engine, workload, trainer, twin, whole=self.options.gate == "whole")
        del twin
        if not verdict.passed:
            self._gather(None)
            self._write(trainer, verdict, None, "failed")
            return PARITY_FAILED
        # The gate's gradients, or they would lie between the holes that it leaves, and memory would grow around them.
        trainer.zero_grad()
        if not forget_peak(engine.device):
            self.warnings.append("peak_memory_mb holds the parity gate too: this host cannot reset the peak")
        steady_malloc()
        workload.seed_step(parity.PARITY_STEP + 1, engine.rank)
        timer = self._time(trainer, workload)
        self._gather(timer)
        # After the timed blocks, or it would change them: it takes memory and leaves malloc with other thresholds.
        self._measure_curve()
        self._write(trainer, verdict, timer, "ok")
        self._phase("done")
        return 0

    def _check_topology(self) -> None:
        """Raise UserError where a rank is not on the node that the case gives it. Collective."""
        fault = topology.misplaced(self.engine.gather_json(rankenv.node()), self.case.cluster.ranks_per_node)
        if fault:
            raise UserError(f"cluster.nodes={self.case.cluster.nodes}: {fault}")

    def _prepare(self) -> tuple[Trainer, torch.nn.Module]:
        """The model under the engine, and a bare twin of it for the gate."""
        model = bare_model(self.case, self.engine.device)
        self.emulated = emulated.find(model)
        trainer = self.engine.prepare(compiled(self.case, model), optimizer_of(model, self.case.optimizer))
        # What is there by now stays, and each collection would walk through it (0.2 s).
        gc.freeze()
        gc.enable()
        return trainer, bare_model(self.case, self.engine.device)

    def _time(self, trainer: Trainer, workload: Workload) -> Timer:
        case, engine = self.case, self.engine
        batches = make_batches(case, engine.rank, engine.world_size, engine.device)
        step = TrainStep(workload, trainer, batches)
        timer = Timer(engine, step, step.prepare)
        self._trace(step, timer)
        self._phase("warmup")
        self.setup_s = time.time() - self.started
        warning = timer.warm_up(case.warmup_steps, trainer.settled)
        self.resume_steps = max(RESUME_STEPS, timer.steps_in(RESUME_S))
        self.warnings += [warning] if warning else []
        gpu = gpu_of(engine.device)
        if gpu and gpu.processes() is None:
            self.warnings.append("NVML does not say who else uses the GPU: pip install nvidia-ml-py")
        if case.cuda_graphs:
            step.prepare(timer.next_step, 1)
            timer.step = GraphedStep(step, timer.next_step)
        for order in self._orders(timer):
            if not self.blocks:
                trainer.tune(timer.run_untimed)
            self._run_block(timer, order)
        return timer

    def _orders(self, timer: Timer) -> Iterator[dict[str, Any]]:
        """The blocks that are due, as they become due: the driver's, or by hand `--rounds` of them."""
        if not self.link.supervised:
            yield from ({"block": block, "place": 0, "parked_s": 0.0} for block in range(self.options.rounds))
            return
        while True:
            self._rest()
            self.link.say(idle=len(self.blocks), rss=psutil.Process().memory_info().rss)
            order = self.link.order()
            if order["order"] == "finish":
                self.beside, self.site = order["beside"], order["site"]
                return
            yield order

    def _rest(self) -> None:
        """Come to a point at which this rank may be stopped: behind a barrier, so that it keeps no other one waiting.

        On a GPU, memory that is not in use goes back, for others that are alive beside it.
        """
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self.engine.barrier()

    def _run_block(self, timer: Timer, order: dict[str, Any]) -> None:
        self._phase("timing", order["block"])
        meter = Meter(self.engine.device, children=self.case.data.workers > 0)
        untimed = self.resume_steps if order["parked_s"] else 0
        timer.run_block(order["block"], self.case.block_steps, untimed)
        self.load.append(meter.read())
        if self.emulated is not None:
            self.lateness_s += step_lateness(self.emulated, self.case.block_steps, self.case.accumulation_steps)
        self.blocks.append(Block(place=order["place"], parked_s=order["parked_s"]))

    def _trace(self, step: TrainStep, timer: Timer) -> None:
        """Note the loss of the first steps, untimed: reading it waits for the device."""
        count = self.options.losses
        if not count:
            return
        timer.prepare(0, count)
        self.losses = [finite(float(step(number))) for number in range(count)]
        timer.next_step = count

    def _phase(self, phase: str, block: int = 0) -> None:
        """Say where this rank is."""
        self.link.say(phase=phase, block=block)

    def _gather(self, timer: Timer | None) -> None:
        """Get every rank's part of the record. Collective."""
        engine = self.engine
        own = {**provenance.of_rank(), "peak_memory_mb": peak_memory_mb(engine.device), "load": plain(self.load)}
        own["lateness_s"] = self.lateness_s if self.emulated is not None else None
        self.ranks = engine.gather_json(own)
        if timer:
            self.samples = engine.gather(timer.samples.tensor().to(engine.device))

    def _measure_curve(self) -> None:
        """Time the all-reduce itself where the case asks for that; one rank has nothing to reduce. Collective."""
        engine, most_mb = self.engine, self.case.curve_max_mb
        if most_mb is None or engine.world_size == 1:
            return
        self._phase("curve")
        own = allreduce.measure(engine, most_mb).to(engine.device)
        self.curve = engine.gather(own)

    def _write(self, trainer: Trainer, verdict: Parity, timer: Timer | None, status: Status) -> None:
        """Ask the engine for the messages of a step where steps were timed; rank 0 writes the record. Collective."""
        header = self._header(trainer, verdict, timer, status) if self.engine.rank == 0 else None
        if timer and self.case.trace_messages:
            if header:
                self._write_record(header, draft=True)
            self._phase("trace")
            messages = self.engine.messages(timer.run_untimed)
            if header:
                header.effective |= messages
        if header:
            header.duration_s = time.time() - self.started
            self._write_record(header)
        self.engine.barrier()

    def _write_record(self, header: Header, *, draft: bool = False) -> None:
        """Write the record, with all ranks' seconds."""
        # Here, since it brings pyarrow (see benches.header), which is no part of a step.
        from benches import record, tables

        samples = tables.samples(self.samples) if self.samples else None
        curve = tables.curve(self.curve) if self.curve else None
        write = record.write_draft if draft else record.write
        write(self.options.out, header, samples, curve)

    def _header(
        self,
        trainer: Trainer,
        verdict: Parity,
        timer: Timer | None,
        status: Status,
    ) -> Header:
        case, engine = self.case, self.engine
        gradients = [p for p in trainer.model.parameters() if p.requires_grad]
        started = datetime.datetime.fromtimestamp(self.started, datetime.timezone.utc)
        return Header(
            case_id=case.id,
            case=case,
            launch=self.options.launch,
            status=status,
            reason=None if status == "ok" else parity_reason(verdict),
            command=command_text(self.options.out),
            started_at=started.isoformat(timespec="seconds"),
            duration_s=time.time() - self.started,
            setup_s=self.setup_s,
            world_size=engine.world_size,
            device=torch.cuda.get_device_name() if engine.device.type == "cuda" else cpu_name(),
            clock=timer.clock.name if timer else "perf_counter",  # type: ignore[arg-type]
            warmup_steps=timer.samples.kind.count(0) if timer else 0,
            samples_per_step=case.global_batch,
            samples_per_epoch=datasets.samples(case),
            gradient_bytes=sum(p.numel() * p.element_size() for p in gradients),
            parameters=sum(p.numel() for p in gradients),
            peak_memory_mb=[rank.pop("peak_memory_mb") for rank in self.ranks],
            parity=verdict,
            effective={**engine.describe(), **trainer.describe()},
            provenance={**provenance.of_job(case), "site": self.site, "ranks": self.ranks},
            warnings=self.warnings,
            blocks=self.blocks,
            load=[rank.pop("load") for rank in self.ranks],
            beside=self.beside,
            losses=self.losses,
        )


def parity_reason(verdict: Parity) -> str:
    """The failed checks in one line."""
    failed = [f"{c.name} error {c.error:.3g} > {c.bound:.3g} ({c.where})" for c in verdict.checks if not c.passed]
    return "parity: " + "; ".join(failed)


def step_lateness(model: emulated.EmulatedModel, steps: int, passes: int) -> list[float]:
    """Seconds by which each of the last `steps` steps was late, all its passes together; the model forgets them."""
    late = model.lateness_s[-steps * passes :]
    model.lateness_s.clear()
    return [sum(late[first : first + passes]) for first in range(0, len(late), passes)]


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON has not."""
    return value if math.isfinite(value) else None


def command_text(out: Path) -> str:
    """The line that started the ranks, as the driver left it, or this process's own."""
    path = out / "command.sh"
    if path.exists():
        return path.read_text().strip()
    return shlex.join([sys.executable, "-m", "benches.worker", *sys.argv[1:]])
