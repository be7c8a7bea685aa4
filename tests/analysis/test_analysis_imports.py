"""The analysis runs where no torch, Horovod or Hydra is installed."""

from __future__ import annotations

import subprocess
import sys


def test_the_analysis_imports_neither_torch_nor_horovod_nor_hydra() -> None:
    code = (
        "import pkgutil, sys, analysis\n"
        "for found in pkgutil.iter_modules(analysis.__path__): __import__(f'analysis.{found.name}')\n"
        "print([name for name in ('torch', 'horovod', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
