"""What a person sees of a build, and what is said of one that failed."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from benches.install import BuildError
from benches.install.steps import Steps, first_error
from launchers.supervise import StopFlag

GCC = """
  [ 58%] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/mpi_ops_v2.cc.o
  In file included from /env/torch/include/torch/csrc/api/include/torch/all.h:4,
                   from /tmp/x/horovod/torch/mpi_ops_v2.cc:23:
  /tmp/x/horovod/common/half.h:76:11: warning: dereferencing type-punned pointer [-Wstrict-aliasing]
  /env/torch/include/torch/all.h:5:2: error: #error C++20 or later compatible compiler is required to use PyTorch.
      5 | #error C++20 or later compatible compiler is required to use PyTorch.
  make[2]: *** [horovod/torch/CMakeFiles/pytorch.dir/build.make:76: mpi_ops_v2.cc.o] Error 1
  make[1]: *** [CMakeFiles/Makefile2:156: horovod/torch/CMakeFiles/pytorch.dir/all] Error 2
  subprocess.CalledProcessError: Command '['cmake', '--build', '.']' returned non-zero exit status 2.
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for horovod
error: failed-wheel-build-for-install
"""
CMAKE = """
  -- Could not find CCache. Consider installing CCache to speed up compilation.
  CMake Error at third_party/gloo/CMakeLists.txt:1 (cmake_minimum_required):
    Compatibility with CMake < 3.5 has been removed from CMake.

  -- Configuring incomplete, errors occurred!
  subprocess.CalledProcessError: Command '['cmake', '..']' returned non-zero exit status 1.
"""
LINK = """
  /usr/bin/ld: pytorch.dir/operations.cc.o: in function `InitializeHorovodOnce':
  operations.cc:(.text+0x9a): undefined reference to `MPI_Init_thread'
  collect2: error: ld returned 1 exit status
  make[2]: *** [build.make:1052: mpi_lib_v2.so] Error 1
"""
PYTHON = """
  Traceback (most recent call last):
    File "<string>", line 1, in <module>
  ModuleNotFoundError: No module named 'setuptools'
  error: subprocess-exited-with-error
"""
MEMORY = """
  c++: fatal error: Killed signal terminated program cc1plus
  make[2]: *** [build.make:90: adapter_v2.cc.o] Error 1
"""
HASH = """
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.
    horovod==0.28.1 from x.tar.gz:
        Expected sha256 00
"""
MANAGED = "error: externally-managed-environment\n\n× This environment is externally managed\n"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (GCC, "all.h:5:2: error: #error C++20 or later compatible compiler"),
        (
            CMAKE,
            "CMake Error at third_party/gloo/CMakeLists.txt:1 (cmake_minimum_required): Compatibility with CMake < 3",
        ),
        (LINK, "undefined reference to `MPI_Init_thread'"),
        (PYTHON, "ModuleNotFoundError: No module named 'setuptools'"),
        (MEMORY, "Killed signal terminated program cc1plus"),
        (HASH, "DO NOT MATCH THE HASHES"),
        (MANAGED, "error: externally-managed-environment"),
        ("working\nsh: 1: nvcc: command not found\nmore\n", "nvcc: command not found"),
        ("one\ntwo\nmake: *** [all] Error 2\n", "two"),
        ("", "it said nothing"),
    ],
)
def test_first_error(output: str, cause: str) -> None:
    found = first_error(output)
    assert cause in found
    assert "\n" not in found


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path, tmp_path / "logs" / "build.log", io.StringIO())


def shown(steps: Steps) -> str:
    assert isinstance(steps._stream, io.StringIO)
    return steps._stream.getvalue()


def test_progress_shows_each_tenth_and_the_log_keeps_all(steps: Steps) -> None:
    lines = "".join(f"[{value:3d}%] Building {value}\\n" for value in range(0, 101, 4))
    steps.run("compile", [sys.executable, "-c", f"print('''{lines}''')"], env=os.environ, limit_s=30)
    assert "] compile\n" in shown(steps)
    assert "100 %\n" in shown(steps)
    assert "[ 48%] Building 48" in steps.log.read_text()


def test_silence_is_broken(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.install.steps.QUIET_S", 0.2)
    steps.run("wait", [sys.executable, "-c", "import time; time.sleep(1)"], env=os.environ, limit_s=30)
    assert shown(steps).count("…") >= 2


def test_a_failure_names_its_cause_and_keeps_the_log(steps: Steps) -> None:
    steps.note("x.cc:1:1: error: of an earlier step\n")
    script = "import sys; print('x.cc:9:1: error: expected ;'); print('make: *** [x] Error 1'); sys.exit(2)"
    with pytest.raises(BuildError) as raised:
        steps.run("compile", [sys.executable, "-c", script], env=os.environ, limit_s=30)
    assert str(raised.value) == f"compile: x.cc:9:1: error: expected ;; log: {steps.log}"
    assert "make: *** [x] Error 1" in steps.log.read_text()


def test_a_step_that_hangs_is_ended(steps: Steps) -> None:
    with pytest.raises(BuildError, match=r"hang: not done within its limit of 0\.5 s; log: "):
        steps.run("hang", [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ, limit_s=0.5)


def test_an_interrupt_ends_the_step(tmp_path: Path) -> None:
    flag = StopFlag()
    steps = Steps(tmp_path, tmp_path / "build.log", io.StringIO(), flag)
    threading.Timer(0.3, lambda: flag.signals.append(signal.SIGTERM)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        steps.run("wait", [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ, limit_s=60)
    assert time.monotonic() - started < 10


def test_a_step_sees_its_environment_and_no_other(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    env = {name: value for name, value in os.environ.items() if name != "HOROVOD_GPU_OPERATIONS"} | {"ADDED": "a b"}
    script = "import os; print('saw', os.environ.get('HOROVOD_GPU_OPERATIONS'), os.environ['ADDED'])"
    steps.run("look", [sys.executable, "-c", script], env=env, limit_s=30)
    assert "saw None a b" in steps.log.read_text()
