"""The launchers know no model and no framework: what they import stays small."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "horovod", "hydra", "omegaconf", "mpi4py", "numpy", "pandas"}


def test_launchers_import_nothing_heavy() -> None:
    code = "import launchers.choose, launchers.lock, sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "launchers" in done.stdout.split()
    assert HEAVY.isdisjoint(done.stdout.split())


def test_the_guard_runs_on_the_standard_library_alone() -> None:
    code = "import launchers.guard, sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) - set(sys.stdlib_module_names) <= {"launchers", "__main__"}
