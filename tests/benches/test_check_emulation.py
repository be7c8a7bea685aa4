"""What the check of the emulated model compares, and what it makes of it; profiles of several processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from workload_cases import made

from benches import cli
from benches import profile as profiling
from benches.checks import emulation_check
from benches.checks.emulation_check import Launch, lines, pair
from benches.workloads.emulated import Layer, load_profile


def test_both_run_alone_and_differ_in_the_model_only(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(profiling.text_of(made()))
    real, emulated = pair(path)
    for case in (real.case, emulated.case):
        assert (case.engine, case.cluster.world_size, case.data.per_rank_batch) == ("local", 1, 2)
        assert case.block_steps == emulation_check.BLOCK_STEPS
    assert (real.case.model.emulated, emulated.case.model.emulated) == (False, True)
    assert emulated.case.model.kwargs["profile"] == str(path)
    assert real.point == emulated.point, "one heat"


@pytest.mark.parametrize(("value", "holds"), [(0.972, True), (1.029, True), (1.031, False), (0.969, False)])
def test_more_than_three_per_cent_is_no_agreement(value: float, holds: bool) -> None:
    real = np.array([0.2, 0.21, 0.19])
    launches = [Launch(made(step_s=0.2 * value), real * drift, real * drift * value) for drift in (1.0, 1.5, 0.8)]
    *_, emulated, found, last = lines(launches)
    assert (last.what, last.n, last.value, last.holds) == ("emulated ÷ real", 3, f"{value:.4f}", holds)
    assert (emulated.what, emulated.holds) == ("emulated ÷ profile", None)
    assert found.what == "real ÷ profile"
    assert lines([])[-1].holds is False


def layer(name: str, forward_s: float, backward_s: float, ready: int) -> Layer:
    return Layer(name=name, forward_s=forward_s, backward_s=backward_s, ready=ready, parameters=(5,))


def test_several_processes_share_the_mean_step_as_their_medians_do() -> None:
    def one(forward_s: float, step_s: float) -> profiling.Profile:
        layers = (layer("a", forward_s, 0.02, 1), layer("b", 0.01, 0.03, 0))
        return made(layers, steps=10, measured_step_s=step_s, step_s=step_s, update_s=0.01)

    found = profiling.merged([one(0.02, 0.09), one(0.03, 0.10), one(0.10, 0.20)])
    assert (found.steps, found.measured_step_s) == (30, pytest.approx(0.13))
    # Medians: 0.03 + 0.02 + 0.01 + 0.03, and 0.01 for the update, come to 0.1.
    assert found.step_s == pytest.approx(0.13)
    assert found.layers[0].forward_s == pytest.approx(0.03 * 1.3)
    assert found.update_s == pytest.approx(0.01 * 1.3)
    assert [one.ready for one in found.layers] == [1, 0]


def test_the_command_line_profiles_in_several_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.yaml"
    words = ["profile", "model=mlp", "engine=ddp", "device=cpu", "--out", str(path), "--json", "--runs"]
    assert cli.main([*words, "2"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["profile"]["steps"] == 2 * profiling.STEPS
    assert load_profile(str(path)).steps == 2 * profiling.STEPS
    assert cli.main([*words, "0"]) == cli.MISTAKE
    assert cli.main(["profile", "model=nothing", "--runs", "2"]) == cli.MISTAKE
    assert "model=nothing: choices: " in capsys.readouterr().err
