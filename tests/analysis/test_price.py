"""What samples cost: by hand, in the table, in CSV and JSON; nothing without a price."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from planted import Plant, make_case

from analysis import report, summary, table
from benches.errors import UserError
from benches.record import HEADER

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
