"""Import rules: what is light stays light, and Hydra stays in the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST_LOADED = "import sys; print(*[name for name in {names} if name in sys.modules])"
# What a rank imports, engines and workloads included; Horovod's own import is the engine's, at `join`.
RANK = ("benches.worker", "benches.rank", "benches.workloads.train", "benches.engines.ddp", "benches.engines.local")


def python(code: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded(modules: list[str], names: list[str]) -> str:
    return python(f"import {', '.join(modules)}; {LIST_LOADED.format(names=names)}")


def test_the_spec_imports_in_a_fifth_of_a_second() -> None:
    code = "import time; start = time.perf_counter(); import benches.spec; print(time.perf_counter() - start)"
    assert min(float(python(code)) for _ in range(5)) < 0.2


@pytest.mark.parametrize("package", ["analysis", "launchers"])
def test_pure_packages_import_no_engine(package: str) -> None:
    modules = [f"{package}.{path.stem}" for path in (ROOT / package).glob("*.py") if path.stem != "__init__"]
    assert modules
    assert loaded(modules, ["torch", "horovod", "hydra", "omegaconf", "mpi4py"]) == ""


def test_a_rank_imports_no_hydra_and_nothing_that_only_its_record_needs() -> None:
    names = ["torch", "hydra", "omegaconf", "benches.config", "benches.driver", "pyarrow", "pandas"]
    assert loaded(list(RANK), names) == "torch"


def test_what_reads_studies_imports_neither_hydra_nor_torch() -> None:
    assert loaded(["benches.folder", "benches.record"], ["hydra", "omegaconf", "torch"]) == ""
