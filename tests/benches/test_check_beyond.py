"""What `make beyond` reads and runs: counted by hand where that can be, and once for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from benches import measured
from benches.checks import beyond

SAID = """Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo
"""


def test_frameworks_are_those_that_are_marked() -> None:
    assert beyond.frameworks(SAID) == "PyTorch"
    assert beyond.frameworks("no such words") == ""


def test_lines_are_counted_between_docstring_and_main() -> None:
    text = '"""Doc."""\n\nimport a\n\nb = 1\n\n\nif __name__ == "__main__":\n    print(1)\n'
    assert beyond.body(text) == ["import a", "b = 1"]


def test_the_bare_scripts_differ_by_what_one_sees_in_them() -> None:
    """DDP: an import, init, wrapping. Horovod: an import, init, the broadcast, the optimizer."""
    assert beyond.changed_lines("local.py") == "−0 +0"
    assert beyond.changed_lines("ddp_gloo.py") == "−1 +3"
    assert beyond.changed_lines("horovod_cpu.py") == "−1 +4"


def test_a_distribution_and_what_it_requires() -> None:
    assert {"hydra-core", "omegaconf"} <= beyond.closure("hydra-core")
    assert beyond.size_mb("hydra-core") > 0.1


def test_a_study_that_was_measured_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text("")
    (tmp_path / measured.BEYOND).write_text("{}")
    assert beyond.main([str(tmp_path)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.horovod
def test_two_ranks_show_what_each_row_says() -> None:
    found = {row.topic: row for row in beyond.ran()}
    profiled = found["reductions of one step in torch.profiler's trace"]
    assert int(profiled.ddp) > 0
    assert profiled.horovod == "0"
    assert int(found["reductions of one step in a trace of its own"].horovod) > 0
    after = found["after a rank was killed, s"]
    # Of torch 2.14.1 a second try over gloo finds addresses of the first and fails.
    assert after.ddp.endswith(("all ranks were started again", "launch ended"))
    assert after.horovod.endswith("launch ended")
