"""Cost: sizes against hand-computed ones, the time limit, and the command that the driver runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from workload_cases import case

from benches import cost, doctor
from benches.errors import UserError
from benches.spec import dump

ROOT = Path(__file__).parents[2]


def normed() -> nn.Module:
    """Linear 64→4 with BatchNorm, and a head that nothing uses."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
            self.unused = nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.body(x)
            return out

    return Normed()


def test_sizes_and_rates() -> None:
    found = cost.measure(
        case(model={"factory": "test_cost:normed", "kwargs": {}, "batch_kwargs": {"shape": [1, 8, 8], "classes": 4}})
    )
    weights = 64 * 4 + 4 + 4 + 4 + 2 * 3 + 3
    assert found.parameters == weights
    assert found.tensors == 6
    assert found.gradient_mb == weights * 4 / 2**20
    assert found.buffers_mb == (4 * 4 + 4 * 4 + 8) / 2**20
    assert (found.largest_parameter, found.largest_parameter_mb) == ("body.1.weight", 256 * 4 / 2**20)
    assert found.without_gradient == ["unused.weight", "unused.bias"]
    assert found.dtypes == ["float32"]
    assert found.steps == 10
    assert found.samples_per_step == 4
    assert 0 < found.step_time_s < 1
    assert found.peak_memory_mb > 50


def test_rate_counts_the_units_of_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_time", lambda *_: [0.5, 3.0, 1.0])
    found = cost.measure(case(model={"samples_per_item": 10, "sample": "token"}, data={"per_rank_batch": 6}))
    assert (found.step_time_s, found.samples_per_step, found.samples_per_s) == (1.0, 60, 60.0)


def test_no_step_starts_after_the_limit() -> None:
    assert cost.measure(case(), limit_s=0).steps == 1


def test_the_command_prints_json(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text(dump(case()))
    command = [sys.executable, "-m", "benches.cost", str(tmp_path / "case.yaml"), "--limit", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == (64 + 1) * 16 + (16 + 1) * 10


def test_doctor_finds_ones_own_model_and_nothing_of_ours_is_shadowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    for shadow in ("analysis", "benches", "launchers"):
        (tmp_path / f"{shadow}.py").write_text("raise RuntimeError('a shadow')\n")
    monkeypatch.chdir(tmp_path)
    assert doctor.cost_of(case(model={"factory": "my_net:net", "kwargs": {}}))["parameters"] == 650


def test_doctor_reads_the_cost_among_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "output", lambda *_, **__: (0, 'hello\n{"steps": 3}\n[W1202] Warning: leaked\n'))
    assert doctor.cost_of(case()) == {"steps": 3}
    monkeypatch.setattr(doctor, "output", lambda *_, **__: (0, "hello\n"))
    with pytest.raises(UserError, match=r"^hello$"):
        doctor.cost_of(case())


def test_the_command_says_in_one_line_what_the_user_got_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.yaml").write_text(dump(case(model={"factory": "no_such_module:f"})))
    assert cost.main([str(tmp_path / "case.yaml")]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == (
        "model.factory=no_such_module:f: no module named no_such_module; install it, or correct the name\n"
    )
