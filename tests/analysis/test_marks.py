"""Marks: emulated and virtual rows, and points at which the host is the limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from planted import Plant, header, make_case, plant

from analysis import summary, table, tidy
from analysis.marks import APART, MEANINGS, host_bound, marks, no_spare_core
from benches.record import Header, Load
from benches.spec import Case

FILE = Path(__file__).parents[2] / "conf" / "model" / "emulated.yaml"
FACTORY = yaml.safe_load(FILE.read_text())["model"]["factory"]
CPUS, STEP_S = 4.0, 0.2


def emulated_case(**changes: Any) -> Case:
    case = make_case("ddp", "gloo", 2, **changes)
    model = msgspec.structs.replace(case.model, factory=FACTORY)
    return msgspec.structs.replace(case, model=model)


def launch(late_s: list[list[float]] | None = None, busy_s: float = 1.0, **site: Any) -> Header:
    """Of two ranks, with blocks of 2 s."""
    load = [[Load(wall_s=2.0, busy_s=busy_s, steal_s=0.0, own_s=0.1)]] * 2
    ranks = [{"host": "n", "lateness_s": late} for late in late_s or [[0.0], [0.0]]]
    return header(emulated_case(), 0, load=load, provenance={"ranks": ranks, "site": site})


def test_emulated_rows_are_marked_and_kept_apart() -> None:
    assert marks(emulated_case(), CPUS, 5) == ("emulated",)
    assert marks(emulated_case(cluster="virtual"), CPUS, 5, host_bound=True) == ("emulated", "virtual", "host-bound")
    assert marks(make_case("ddp", "gloo", 2), CPUS, 5) == ()
    assert {"emulated", "virtual"} == APART
    assert set(MEANINGS) > APART


def test_virtual_nodes_share_the_cores_of_one_machine() -> None:
    case = make_case("ddp", "gloo", 2, cluster="virtual")
    case = msgspec.structs.replace(case, cluster=msgspec.structs.replace(case.cluster, nodes=3))
    assert "oversubscribed" in marks(case, 5, 5)
    assert "oversubscribed" not in marks(case, 6, 5)
    assert no_spare_core(case, 11)
    assert not no_spare_core(case, 12)


@pytest.mark.parametrize(
    ("late_s", "bound"),
    [
        ([[0.009] * 5, [0.0] * 5], False),
        ([[0.011] * 5, [0.0] * 5], True),
        # One step in five is no habit.
        ([[0.0, 0.0, 0.0, 0.0, 0.2], [0.0] * 5], False),
    ],
)
def test_layers_late_by_more_than_a_twentieth_of_the_step(late_s: list[list[float]], bound: bool) -> None:
    assert host_bound(launch(late_s), CPUS, STEP_S) is bound
    assert not host_bound(launch(late_s), None, None)


def test_a_host_that_is_busy_beyond_four_fifths() -> None:
    assert not host_bound(launch(busy_s=0.79 * 2 * CPUS), CPUS, STEP_S)
    assert host_bound(launch(busy_s=0.81 * 2 * CPUS), CPUS, STEP_S)
    assert not host_bound(launch(busy_s=8.0), None, None)


def test_links_that_carry_less_than_asked() -> None:
    assert host_bound(launch(kind="virtual", short=[3]), CPUS, STEP_S)
    assert not host_bound(launch(kind="virtual", short=[]), CPUS, STEP_S)


def test_rows_carry_it_where_half_of_their_launches_do(tmp_path: Path) -> None:
    case = make_case("ddp", "gloo", 2, cluster="virtual")
    plant(tmp_path, [Plant(case, 0.05)], launches=2)
    (header_path, *others) = sorted(tmp_path.rglob("record.json"))
    assert len(others) == 1
    assert "host-bound" not in summary.reduce(table.read(tmp_path)).rows[0].marks
    content = json.loads(header_path.read_text())
    content["provenance"]["site"] = {"kind": "virtual", "short": [1]}
    header_path.write_text(json.dumps(content))
    records = table.read(tmp_path)
    assert "host-bound" in summary.reduce(records).rows[0].marks
    assert set(tidy.tidy(records)["marks"]) == {"provisional virtual host-bound"}


def test_a_real_model_may_keep_its_host_busy() -> None:
    busy = [[Load(wall_s=2.0, busy_s=8.0, steal_s=0.0, own_s=4.0)]] * 2
    assert not host_bound(header(make_case("ddp", "gloo", 2), 0, load=busy), CPUS, STEP_S)
    assert not host_bound(header(make_case("ddp", "gloo", 2), 0, provenance={}), CPUS, STEP_S)
