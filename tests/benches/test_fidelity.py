"""The fidelity benchmark: bare scripts that do the same work as we do, fair turns, and verdicts of planted times."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import stats as distributions

from analysis import stats
from benches.checks import fidelity, turns
from benches.spec import TRANSPORTS
from benches.workloads.data import batch_for
from benches.workloads.train import bare_model
from launchers.supervise import Outcome, StopFlag

BARE = sorted((fidelity.HERE / "bare").glob("*.py"))
CPU = torch.device("cpu")


def row(ours: list[float], theirs: list[float], model: str = "resnet18", memory: tuple[float, float] = (500.0, 480.0)):
    """A row of launches of two blocks each."""
    launches = [{"ours": np.full(2, a), "theirs": np.full(2, b)} for a, b in zip(ours, theirs, strict=True)]
    return fidelity.row(fidelity.make_pair("local", model), launches, len(launches), memory)


def test_every_cell_of_the_cpu_has_a_script() -> None:
    cells = {f"{engine}/{t}" for engine, choices in TRANSPORTS.items() for t in choices if t != "nccl"} | {"local"}
    assert cells == set(fidelity.SCRIPTS)
    assert {path.name for path in BARE} == set(fidelity.SCRIPTS.values())


@pytest.mark.parametrize("path", BARE, ids=lambda path: path.stem)
def test_a_script_is_short_and_owes_us_nothing(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names} | {getattr(node, "module", "") for node in imports}
    assert not {name.split(".")[0] for name in names} & {"benches", "analysis", "launchers"}
    assert "def step() -> None:" in text


def module_of(step: Any) -> dict[str, Any]:
    return step.__globals__


@pytest.mark.parametrize("model", fidelity.MODELS)
def test_a_script_does_the_same_work_as_our_worker(model: str) -> None:
    case = fidelity.make_pair("local", model).case
    theirs = module_of(turns.load_step(fidelity.HERE / "bare" / "local.py", model))
    ours = [parameter.shape for parameter in bare_model(case, CPU).parameters()]
    assert [parameter.shape for parameter in theirs["model"].parameters()] == ours
    group = theirs["optimizer"].param_groups[0]
    settings = case.optimizer
    assert (type(theirs["optimizer"]).__name__.lower(), group["lr"], group["momentum"], group["weight_decay"]) == (
        *(settings.name, settings.lr, settings.momentum, settings.weight_decay),
    )
    x, y = next(theirs["batches"])
    our_x, our_y = batch_for(case, 0, 1, 0, CPU)
    assert (x.shape, x.dtype, y.shape, y.dtype) == (our_x.shape, our_x.dtype, our_y.shape, our_y.dtype)


def test_a_script_joins_the_job_that_is_there() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        step = turns.load_step(fidelity.HERE / "bare" / "ddp_gloo.py", "mlp")
        weight = next(module_of(step)["model"].parameters())
        before = weight.detach().clone()
        step()
        assert not torch.equal(weight, before)
    finally:
        dist.destroy_process_group()


def test_turns_are_balanced() -> None:
    for launch in range(2):
        first = [turns.order(launch, block)[0] for block in range(8)]
        assert first.count("ours") == 4
        assert all(sorted(turns.order(launch, block)) == ["ours", "theirs"] for block in range(8))
    assert turns.order(0, 0) != turns.order(1, 0)
    assert all(model.rounds % 2 == 0 for model in fidelity.MODELS.values())


def test_equal_times_hold() -> None:
    found = row([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert found.ratio.value == 1
    assert found.ratio.n == 3
    assert found.faults() == []


def test_the_bars_are_those_of_the_model() -> None:
    slow = [1.02] * 6
    assert row(slow, [1.0] * 6).faults() == ["ratio beyond 1%", "high end not below 2%"]
    assert row(slow, [1.0] * 6, "mlp").faults() == []
    assert row([0.98] * 6, [1.0] * 6).faults() == ["ratio beyond 1%"]
    assert row([1.05] * 6, [1.0] * 6, "mlp").faults() == ["ratio beyond 3%", "high end not below 4%"]


def test_a_wide_interval_fails_although_the_point_is_right() -> None:
    # t(0.975; 1) = 12.7 on two launches at ±2 % reaches far beyond 2 %.
    assert row([1.02, 1 / 1.02], [1.0, 1.0]).faults() == ["high end not below 2%"]
    assert row([1.0], [1.0]).faults() == ["high end not below 2%"]


def test_memory_counts_either_way() -> None:
    assert row([1.0] * 6, [1.0] * 6, memory=(565.0, 500.0)).faults() == ["memory beyond 64 MiB"]
    assert row([1.0] * 6, [1.0] * 6, memory=(500.0, 564.0)).faults() == []


def test_slowest_rank_of_each_block_counts_and_failures_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [fidelity.make_pair("ddp/gloo", "mlp"), fidelity.make_pair("horovod/gloo", "mlp")]

    def start(self: fidelity.Bench, pair: fidelity.Pair, out: Path, args: tuple[str, ...]) -> None:
        if pair is pairs[1]:
            raise fidelity.LaunchFailed("rank 1: killed by SIGKILL in warmup")
        out.mkdir(parents=True)
        if "benches.checks.turns" in args:
            (out / "turns.json").write_text('{"ours": [[1.0, 3.0], [3.0, 2.0]], "theirs": [[2.0, 1.0], [1.0, 2.0]]}')

    monkeypatch.setattr(fidelity.Bench, "_start", start)
    monkeypatch.setattr(fidelity.Bench, "ours_alone", lambda *_: 300.0)
    monkeypatch.setattr(fidelity.Bench, "theirs_alone", lambda *_: 290.0)
    good, bad = fidelity.measure(fidelity.Bench(tmp_path, StopFlag()), pairs, 2, 1.0, 2)
    assert isinstance(good, fidelity.Row)
    assert good.ratio.value == pytest.approx(1.5)
    assert good.ratio.n == 2
    assert "1.5000" in fidelity.show(good)
    assert "+10" in fidelity.show(good)
    assert bad == (pairs[1], "rank 1: killed by SIGKILL in warmup")
    assert "failed: rank 1: killed by SIGKILL" in fidelity.show(bad)
    assert "launch 2 of 2, ddp-gloo-mlp: 1.5000" in capsys.readouterr().err


class Dealt(fidelity.Bench):
    """Launches whose ratios are dealt beforehand, and which of them were asked for."""

    def __init__(self, ratios: dict[str, list[float]]) -> None:
        self.ratios = ratios
        self.asked: list[tuple[str, int]] = []

    def turns(self, pair: fidelity.Pair, launch: int, rounds: int) -> fidelity.Blocks:
        self.asked.append((pair.case.cell, launch))
        if not self.ratios[pair.case.cell]:
            raise fidelity.LaunchFailed("lost")
        return {"ours": np.full(rounds, self.ratios[pair.case.cell].pop(0)), "theirs": np.ones(rounds)}

    def left(self, pair: fidelity.Pair) -> list[fidelity.Blocks]:
        return []

    def ours_alone(self, pair: fidelity.Pair) -> float:
        return 300.0

    theirs_alone = ours_alone


def dealt(most: int, **ratios: list[float]) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Rows by cell after two first launches, and what was asked for."""
    bench = Dealt({cell.replace("_", "/"): of for cell, of in ratios.items()})
    pairs = [fidelity.make_pair(cell, "resnet18") for cell in bench.ratios]
    rows = fidelity.measure(bench, pairs, 2, 1.0, most)
    found = {r.pair.case.cell if isinstance(r, fidelity.Row) else r[0].case.cell: r for r in rows}
    return found, bench.asked


def test_only_what_is_too_wide_gets_more_launches_and_as_many_as_planned() -> None:
    wide = [1.002, 0.998, *[1.0] * 20]
    found, asked = dealt(30, local=[1.0001, 1.0] * 20, ddp_gloo=wide)
    first = fidelity.ratio_of([{"ours": np.full(2, one), "theirs": np.ones(2)} for one in (1.002, 0.998)], 2)
    half = fidelity.MODELS["resnet18"].half_width(2)
    planned = stats.launches_in_two_stages(first, half)
    assert 2 < planned < 20
    assert stats.log_half(found["ddp/gloo"].ratio) <= half
    assert (found["local"].ratio.n, found["ddp/gloo"].ratio.n) == (2, planned)
    assert asked == [("local", 0), ("ddp/gloo", 0), ("local", 1), ("ddp/gloo", 1)] + [
        ("ddp/gloo", launch) for launch in range(2, planned)
    ]


def test_the_plan_sees_the_width_and_not_the_ratio() -> None:
    near, far = (dealt(30, local=[by * one for one in (1.002, 0.998, *[1.0] * 20)])[1] for by in (1.0, 1.1))
    assert len(near) == len(far) > 2


def test_launches_end_at_the_most_and_where_one_failed() -> None:
    found, _ = dealt(4, local=[1.5, 0.5, *[1.0] * 20])
    assert found["local"].ratio.n == 4
    found, _ = dealt(1, local=[1.5, 0.5, *[1.0] * 20])
    assert found["local"].ratio.n == 2
    found, asked = dealt(9, local=[1.5, 0.5], ddp_gloo=[])
    assert found["local"][1] == "lost"
    assert found["ddp/gloo"][1] == "lost"
    assert asked == [("local", 0), ("ddp/gloo", 0), ("local", 1), ("local", 2)]


@pytest.mark.parametrize("model", fidelity.MODELS.values(), ids=fidelity.MODELS)
@pytest.mark.parametrize("first", [3, 6, 12])
def test_with_the_planned_width_19_of_20_equal_pairs_hold(model: fidelity.Model, first: int) -> None:
    draws = 40_000
    half = model.half_width(first)
    # Stein's pivot: the mean of all, in units of half the width ÷ quantile, has Student's t.
    of_t = distributions.t(first - 1)
    mean = of_t.rvs(draws, random_state=1) * half / of_t.ppf(0.975)
    holds = (abs(mean) <= math.log1p(model.most_off)) & (mean + half < math.log1p(model.most_high))
    assert holds.mean() == pytest.approx(0.95, abs=0.004)


def test_a_run_goes_on_with_what_an_earlier_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def start(self: fidelity.Bench, pair: fidelity.Pair, out: Path, args: tuple[str, ...]) -> None:
        started.append(out.name)
        out.mkdir(parents=True)
        if "--rounds" in args and "benches.checks.turns" in args:
            (out / "turns.json").write_text(json.dumps({side: [[1.0, 1.0]] * 60 for side in ("ours", "theirs")}))

    monkeypatch.setattr(fidelity.Bench, "_start", start)
    monkeypatch.setattr(fidelity.Bench, "ours_alone", lambda *_: 300.0)
    monkeypatch.setattr(fidelity.Bench, "theirs_alone", lambda *_: 300.0)
    words = ["--cells", "local", "--models", "mlp", "--quick", "--records", str(tmp_path)]
    assert fidelity.main([*words, "--launches", "2"]) == 0
    assert fidelity.main([*words, "--launches", "3"]) == 0
    assert started == ["0", "1", "2"]
    assert "1.0000" in capsys.readouterr().out
    assert fidelity.main([word for word in words if word != "--quick"]) == 2
    assert "local-mlp has launches of 60 rounds, these have 120; start anew" in capsys.readouterr().err
    assert fidelity.main(["--records", str(tmp_path / "none")]) == 2
    assert "none: no such folder" in capsys.readouterr().err


def test_a_launch_without_numbers_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "local-mlp" / "0"
    broken.mkdir(parents=True)
    (broken / "command.sh").write_text("earlier")
    monkeypatch.setattr(fidelity, "run", lambda *_, **__: Outcome("failed", "lost", 1, 0.1))
    bench, pair = fidelity.Bench(tmp_path, StopFlag()), fidelity.make_pair("local", "mlp")
    assert bench.left(pair) == []
    with pytest.raises(fidelity.LaunchFailed, match="lost"):
        bench.turns(pair, 0, 2)
    (aside,) = broken.parent.glob("0-*")
    assert (aside / "command.sh").read_text() == "earlier"
    assert "benches.checks.turns" in (broken / "command.sh").read_text()


@pytest.mark.parametrize("words", [["--launches", "0"], ["--most", "-3"]])
def test_no_launches_are_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fidelity.parse(words)
    assert ended.value.code == 2
    assert "at least one launch is needed" in capsys.readouterr().err


def test_a_real_launch_gives_both_sides_and_both_peaks(tmp_path: Path) -> None:
    pair = fidelity.make_pair("ddp/gloo", "mlp")
    bench = fidelity.Bench(tmp_path, StopFlag())
    blocks = bench.turns(pair, 0, 2)
    assert {side: len(seconds) for side, seconds in blocks.items()} == {"ours": 2, "theirs": 2}
    assert all((seconds > 0).all() for seconds in blocks.values())
    # A script that imports torch and torchvision holds no less.
    assert 100 < bench.theirs_alone(pair) < 2000
