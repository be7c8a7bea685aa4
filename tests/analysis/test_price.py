"""What samples cost: by hand, in the table, in CSV and JSON; nothing without a price."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd
import pytest
from planted import Plant, header, make_case

from analysis import report, summary, table
from analysis.load import power_w
from benches.errors import UserError
from benches.record import HEADER, Load

Make = Callable[..., Path]
EPOCH = 1797


def priced(study_folder: Make, price: float | None, epoch: int | None = EPOCH) -> Path:
    """Two contestants, 320 samples a second on a node."""
    plants = [Plant(make_case(engine, "gloo", 2), 0.1, launch_sd=0.02) for engine in ("ddp", "horovod")]
    folder = study_folder(plants, price_per_node_hour=price)
    for path in folder.rglob(HEADER):
        known = f'"samples_per_epoch": {epoch or "null"}'
        path.write_text(path.read_text().replace('"samples_per_epoch": null', known))
    return folder


def test_cost_is_price_times_nodes_times_time(study_folder: Make) -> None:
    found = summary.reduce(table.read(priced(study_folder, 3.6)))
    for row in found.rows:
        costs = found.cost(row)
        assert row.throughput
        # A thousandth a node and second.
        assert costs["cost_per_million"].value == pytest.approx(1000 / row.throughput.value)
        assert costs["cost_per_epoch"].value == pytest.approx(EPOCH / 1000 / row.throughput.value)
        assert costs["cost_per_million"].low == pytest.approx(1000 / row.throughput.high), "the fastest is cheapest"
        assert costs["cost_per_million"].n == row.throughput.n


def test_it_stands_in_every_format(study_folder: Make, tmp_path: Path) -> None:
    folder = priced(study_folder, 3.6)
    report.write(folder, tmp_path)
    rows = summary.summarise(folder)["contestants"]
    text = (tmp_path / "report.md").read_text()
    assert "## Cost" in text
    assert "**Cost at 3.6 a node and hour**" in text
    assert "| a million samples | an epoch |" in text
    assert "Cost at 3.6 a node and hour" in (tmp_path / "report.html").read_text()
    frame = pd.read_csv(tmp_path / "contestants.csv")
    for name in ("cost_per_million", "cost_per_epoch"):
        assert list(frame[name]) == [row[name]["value"] for row in rows]


def test_an_epoch_needs_a_set_of_known_size(study_folder: Make, tmp_path: Path) -> None:
    folder = priced(study_folder, 3.6, epoch=None)
    assert [row["cost_per_epoch"] for row in summary.summarise(folder)["contestants"]] == [None, None]
    report.write(folder, tmp_path, ("md",))
    assert "an epoch" not in (tmp_path / "report.md").read_text()


def test_without_a_price_there_is_no_cost(study_folder: Make, tmp_path: Path) -> None:
    folder = priced(study_folder, None)
    report.write(folder, tmp_path, ("md", "csv"))
    assert "## Cost" not in (tmp_path / "report.md").read_text()
    assert "cost_per_million" not in pd.read_csv(tmp_path / "contestants.csv").columns
    assert summary.summarise(folder)["contestants"][0]["cost_per_million"] is None


@pytest.mark.parametrize("price", ["0", "-1", "much", ".inf"])
def test_a_price_is_a_number_above_0(price: str) -> None:
    from composing import study

    with pytest.raises(UserError, match=r"study.price_per_node_hour=.*: takes a number above 0, or null"):
        study("model=mlp", f"study.price_per_node_hour={price}")


def test_the_price_is_frozen_with_the_study() -> None:
    from composing import study

    assert study("model=mlp", "study.price_per_node_hour=2.5").price_per_node_hour == 2.5


def with_energy(folder: Path, ranks: list[list[float | None]]) -> Path:
    """Joules of each rank's blocks of a second, in all launches of a study."""
    for path in folder.rglob(HEADER):
        known = json.loads(path.read_text())
        load = {"wall_s": 1.0, "busy_s": 1.0, "steal_s": 0.0, "own_s": 0.5}
        known["load"] = [[load | {"energy_j": joules} for joules in blocks] for blocks in ranks]
        path.write_text(json.dumps(known))
    return folder


def test_energy_is_power_times_time(study_folder: Make, tmp_path: Path) -> None:
    folder = with_energy(priced(study_folder, None), [[50.0, 70.0], [50.0, 70.0]])
    found = summary.reduce(table.read(folder))
    for row in found.rows:
        assert row.throughput
        energy = found.cost(row)["energy_per_million"]
        # Two ranks of one host see the same packages.
        assert energy.value == pytest.approx(60 / row.throughput.value * 1e6 / 3600)
    report.write(folder, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**Cost**" in text
    assert "| Wh a million samples |" in text
    assert "price ×" not in text
    frame = pd.read_csv(tmp_path / "contestants.csv")
    assert list(frame["energy_per_million"]) == [found.cost(row)["energy_per_million"].value for row in found.rows]


def test_energy_stands_beside_a_price(study_folder: Make) -> None:
    folder = with_energy(priced(study_folder, 3.6), [[50.0], [50.0]])
    row = summary.summarise(folder)["contestants"][0]
    assert all(row[name]["value"] > 0 for name in ("cost_per_million", "cost_per_epoch", "energy_per_million"))


def test_where_one_rank_has_no_counter_there_is_no_energy(study_folder: Make) -> None:
    folder = with_energy(priced(study_folder, None), [[50.0, 50.0], [None, None]])
    assert summary.summarise(folder)["contestants"][0]["energy_per_million"] is None


@pytest.mark.parametrize(("device", "watts"), [("cuda", 120.0), ("cpu", 60.0)])
def test_gpus_are_added_up_and_packages_counted_once_a_host(device: Literal["cpu", "cuda"], watts: float) -> None:
    case = msgspec.structs.replace(make_case("ddp", "gloo", 2), device=device)
    load = Load(wall_s=2.0, busy_s=1.0, steal_s=0.0, own_s=0.5, energy_j=120.0)
    assert power_w(header(case, 0, load=[[load], [load]])) == pytest.approx(watts)
