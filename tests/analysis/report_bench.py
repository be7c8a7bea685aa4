"""How long a whole report takes, and how much memory, by the number of step samples: `make report-bench`.

`python tests/analysis/report_bench.py [--launches 1000] [--ranks 10] [--steps 2000]` plants that many launches in a
temporary folder (its time does not count), then renders every format in a fresh process and prints its seconds, CPU
seconds and peak memory. One file of samples is written for each contestant and linked for its launches.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from planted import Plant, contestant, header, make_case, write_study

from analysis import report
from benches import record
from benches.spec import Study

CONTESTANTS = 20
BLOCKS = 10
LIMIT_S = 900


def main() -> None:
    options = parsed()
    if options.render:
        render(options.render)
        return
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "study"
        plant(folder, options.launches, options.ranks, options.steps)
        samples = options.launches * options.ranks * options.steps
        command = [sys.executable, __file__, "--render", str(folder)]
        done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True, check=True)
        print(f"{samples:.0e} step samples in {options.launches} launches: {done.stdout.strip()}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000, help="of one launch")
    parser.add_argument("--render", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def render(folder: Path) -> None:
    start = time.perf_counter()
    report.write(folder, folder / "report")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{time.perf_counter() - start:.1f} s, of these {time.process_time():.1f} s of CPU; {peak:.0f} MiB")


def plant(folder: Path, launches: int, ranks: int, steps: int) -> None:
    """CONTESTANTS of one point, which share the launches."""
    each = launches // CONTESTANTS
    plants = [
        Plant(make_case(engine, "gloo", ranks, seed=seed, block_steps=steps // BLOCKS), 0.1, name=f"{engine}-{seed}")
        for engine in ("ddp", "horovod")
        for seed in range(CONTESTANTS // 2)
    ]
    study = Study(name="bench", contestants=tuple(map(contestant, plants)), launches=each, rounds=BLOCKS, max_cases=200)
    write_study(folder, study)
    random = np.random.default_rng(0)
    for one in plants:
        first = folder / "launches" / one.case.id / "0"
        for launch in range(each):
            out = folder / "launches" / one.case.id / str(launch)
            out.mkdir(parents=True)
            if launch:
                os.link(first / record.SAMPLES, out / record.SAMPLES)
            else:
                pq.write_table(samples(ranks, steps, random), out / record.SAMPLES, compression="zstd")
            record.write(out, header(one.case, launch), None)


def samples(ranks: int, steps: int, random: np.random.Generator) -> pa.Table:
    """Steps and blocks of one launch."""
    own = steps // BLOCKS
    seconds = random.normal(0.1, 0.002, (ranks, BLOCKS, own))
    shape = np.indices(seconds.shape)
    rows = [axis.ravel() for axis in shape] + [seconds.ravel()]
    walls = [axis[:, :, 0].ravel() for axis in shape[:2]] + [seconds.sum(axis=2).ravel()]
    rank, block, step = (
        np.concatenate([a, b]) for a, b in zip(rows[:3], [*walls[:2], np.full(ranks * BLOCKS, -1)], strict=True)
    )
    kinds = np.array(["step", "block"])[np.repeat([0, 1], [rows[0].size, walls[0].size])]
    times = np.concatenate([rows[3], walls[2]])
    begun = seconds.reshape(ranks, -1).cumsum(axis=1).reshape(seconds.shape) - seconds
    starts = np.concatenate([begun.ravel(), begun[:, :, 0].ravel()])
    columns = [pa.array(kinds).dictionary_encode(), rank, block, step, starts, times]
    return pa.table(columns, names=record.SAMPLE_SCHEMA.names).cast(record.SAMPLE_SCHEMA)


if __name__ == "__main__":
    main()
