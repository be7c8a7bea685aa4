"""A CUDA toolkit made of pip packages, and what is said where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benches.errors import UserError
from benches.install import toolkit
from benches.install.plan import TorchKit

CUDA_13 = TorchKit("2.14.1+cu130", "13.0", Path("/site/torch"), 0, (80, 90))

FILES = (
    "cu13/bin/nvcc",
    "cu13/bin/crt/link.stub",
    "cu13/nvvm/bin/cicc",
    "cu13/include/cuda_runtime.h",
    "cu13/include/crt/host_config.h",
    "cu13/lib/libcudart.so.13",
    "cu13/lib/libcudart_static.a",
    "nccl/include/nccl.h",
    "nccl/lib/libnccl.so.2",
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Site-packages as NVIDIA's packages fill them."""
    for name in FILES:
        path = tmp_path / "site" / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    header = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 7\n\n#define NCCL_VERSION_CODE 23007\n"
    (tmp_path / "site/nvidia/nccl/include/nccl.h").write_text(header)
    return tmp_path / "site"


def test_the_layout_is_that_of_a_toolkit(tmp_path: Path, site: Path) -> None:
    home = toolkit.lay_out(tmp_path / "cuda", [site / "nvidia/cu13", site / "nvidia/nccl"])
    for name in (
        "bin/nvcc",
        "bin/crt/link.stub",
        "nvvm/bin/cicc",
        "include/cuda_runtime.h",
        "include/crt/host_config.h",
        "include/nccl.h",
        "lib64/libcudart.so.13",
        "lib64/libcudart.so",
        "lib64/libcudart_static.a",
        "lib64/libnccl.so",
    ):
        assert (home / name).is_file(), name
    assert (home / "lib64/libnccl.so").read_text() == "nccl/lib/libnccl.so.2"


def test_the_settings_ask_for_nccl_and_name_the_layout(tmp_path: Path, site: Path) -> None:
    found = toolkit.assemble(tmp_path, site, toolkit.plan_gpu(CUDA_13, site, {}))
    home = str(tmp_path / "cuda")
    assert found == {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": home,
        "CUDA_HOME": home,
        "CUDAToolkit_ROOT": home,
        "HOROVOD_NCCL_INCLUDE": str(tmp_path / "nccl/include"),
        "HOROVOD_NCCL_LIB": str(tmp_path / "nccl/lib64"),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "80,90",
    }
    assert (Path(home) / "bin/nvcc").exists()
    assert (Path(found["HOROVOD_NCCL_LIB"]) / "libnccl.so").exists()


def test_a_toolkit_that_the_user_names_is_taken(tmp_path: Path, site: Path) -> None:
    home = str(site / "nvidia/cu13")
    cuda = toolkit.plan_gpu(CUDA_13, site, {"CUDA_HOME": home})
    assert cuda.packages == ()
    assert toolkit.assemble(tmp_path, tmp_path / "empty", cuda)["HOROVOD_CUDA_HOME"] == home


def test_torchs_own_cuda_decides_what_is_fetched(site: Path) -> None:
    cuda = toolkit.plan_gpu(CUDA_13, site, {})
    assert cuda.packages[0] == "nvidia-cuda-nvcc==13.0.*"
    assert {word.split("==")[1] for word in cuda.packages} == {"13.0.*"}


@pytest.mark.parametrize(
    ("cuda", "shell", "lack"),
    [
        (None, {}, r"torch 2\.14\.1 is a CPU build; install a CUDA build"),
        ("12.8", {}, r"no nvcc for CUDA 12\.8.*CUDA_HOME"),
        ("13.0", {"CUDA_HOME": "/nowhere"}, "CUDA_HOME=/nowhere: holds no bin/nvcc"),
        ("13.0", {"HOROVOD_NCCL_HOME": "/nowhere"}, r"/nowhere/include/nccl\.h is missing; install"),
    ],
)
def test_what_it_lacks_is_said(site: Path, cuda: str | None, shell: dict[str, str], lack: str) -> None:
    with pytest.raises(UserError, match=lack):
        toolkit.plan_gpu(TorchKit("2.14.1", cuda, Path("/site/torch")), site, shell)


def test_nccl_is_torchs_own_unless_named(tmp_path: Path, site: Path) -> None:
    own = toolkit.plan_gpu(CUDA_13, site, {})
    named = toolkit.plan_gpu(CUDA_13, tmp_path, {"HOROVOD_NCCL_HOME": str(site / "nvidia/nccl")})
    assert own.nccl == named.nccl == site / "nvidia/nccl"


def test_the_flavour_says_all_that_the_wheel_depends_on(site: Path) -> None:
    assert toolkit.plan_gpu(CUDA_13, site, {}).flavour == "nccl 2.30.7, CUDA 13.0, compute capabilities 80,90"
