"""Records of every schema version that Ringduel ever wrote stay readable. `schemas/N` was written when N was current
and is never written again; a new version adds a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import library, report
from benches.record import SCHEMA_VERSION

HERE = Path(__file__).parent / "schemas"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_study_of_each_version_is_read(version: int, tmp_path: Path) -> None:
    blocks = library.load(HERE / str(version))
    assert set(blocks["schema_version"]) == {version}
    assert len(blocks) == 2 * 2 * 2
    (row,) = library.compare(blocks)["ratio"]
    assert row.value == pytest.approx(0.1250 / 0.0713, rel=0.05)
    assert report.write(HERE / str(version), tmp_path, ("md",))
