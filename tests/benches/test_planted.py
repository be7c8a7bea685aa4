"""Ten unfairnesses, planted for real: each is caught and named, by the gate in a process group or by the lint."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from composing import study

from benches.errors import UserError

TESTS = Path(__file__).resolve().parents[1]
LIMIT_S = 280

ALIKE = "all ranks alike"
# Of each plant: the checks of the gate that must name it, and the words that say where; see tests/plants.py.
CAUGHT = {
    "summed": {"reduction": ALIKE, "projection": ALIKE},
    "one rank x 1.01, fp32": {"reduction": ALIKE, "projection": ALIKE},
    "one rank x 1.01, autocast": {"reduction": ALIKE, "projection": ALIKE},
    "one rank x 1.01, bf16": {"projection": ALIKE},
    "learning rate x size": {"learning_rate": "for 0.01, group 0"},
    "same batches": {"samples": "batches that several ranks share"},
    "same samples": {"samples": "samples that several ranks share"},
    "dropped from the reduction": {"reduction": "head.weight"},
    "frozen": {"reduction": "head.weight", "projection": ALIKE},
    "dropped from the update": {"weights": "head.bias"},
    "buffers unsynced": {"initial_weights": "running_mean"},
    "buffers frozen": {"buffers": "features.1.running_"},
    "autocast": {"reduction": ALIKE},
    "weights in another dtype": {"initial_weights": "torch.bfloat16 for torch.float32"},
    "another seed": {"local": "rank LAST"},
    "another random stream": {"local": "rank LAST"},
    "zero_grad skipped": {"zero_grad": "rank "},
}
BRIEF = ["learning rate x size", "same batches", "same samples", "buffers unsynced"]
CAUGHT |= {f"{plant}, brief": CAUGHT[plant] for plant in BRIEF}
CAUGHT["zero_grad skipped, fp16, brief"] = CAUGHT["zero_grad skipped"]  # whole all the same: it finds the loss scale
SOUND = ["nothing, fp32", "nothing, autocast", "nothing, bf16", "nothing, digits", "nothing, fp32, brief"]

Verdicts = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module", params=[2, 4])
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Number of ranks, and what the gate said of each plant: all of them in one process group."""
    out = tmp_path_factory.mktemp("plants") / "verdicts.json"
    launch(request.param, out)
    return request.param, json.loads(out.read_text())


def launch(ranks: int, out: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    job["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    argv = [sys.executable, str(TESTS / "plants.py"), str(out)]
    started = [
        subprocess.Popen(argv, env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(LIMIT_S) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("plant", CAUGHT)
def test_the_gate_names_the_check_and_where(plant: str, verdicts: Verdicts) -> None:
    ranks, found = verdicts
    for check, where in CAUGHT[plant].items():
        assert check in found[plant]
        assert where.replace("LAST", str(ranks - 1)) in found[plant][check]


@pytest.mark.parametrize("plant", SOUND)
def test_the_gate_is_silent_where_nothing_was_planted(plant: str, verdicts: Verdicts) -> None:
    assert verdicts[1][plant] == {}


def test_the_gate_is_silent_under_random_fair_settings(verdicts: Verdicts) -> None:
    assert verdicts[1]["fair"] == []


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("ddp.broadcast_buffers=true", "ddp.broadcast_buffers"),
        ("study.contestants.horovod.precision=bf16", "precision"),
        ("study.contestants.ddp.ddp.comm_hook=fp16", "ddp.comm_hook"),
        ("study.contestants.ddp.cluster.threads_per_rank=2", "cluster.threads_per_rank"),
        ("study.contestants.ddp.seed=7", "seed"),
        ("study.contestants.horovod.optimizer.lr=0.02", "optimizer.lr"),
        ("study.contestants.ddp.data.per_rank_batch=64", "data.per_rank_batch"),
    ],
)
def test_the_lint_names_what_the_gate_cannot_see_within_one_contestant(words: str, key: str) -> None:
    """Threads bend no gradient; the rest is sound on each side and yet unlike the other."""
    with pytest.raises(UserError, match=f"^{key}: contestants ddp .* and horovod .* differ in it"):
        study(words, "allow_oversubscribe=true")
