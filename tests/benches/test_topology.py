"""Which rank runs on which node, and how it is wired there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benches import rankenv, wiring
from benches.control import Control, Event
from benches.heat import Entry
from benches.topology import misplaced


@pytest.mark.parametrize(
    ("found", "ranks_per_node", "planned", "line"),
    [
        (["a", "a", "b", "b"], 2, (), None),
        (["a", "a", "b", "b"], 2, ("a", "b"), None),
        (["a", "b", "a", "b"], 2, (), "rank 1 runs on b, and its node 0 is a"),
        (["b", "b", "a", "a"], 2, ("a", "b"), "rank 0 runs on b, and its node 0 is a"),
        (["a", "a", "a", "a"], 2, (), "rank 2 runs on a, its node 1, which is node 0 too"),
        (["a", None, None, "b"], 2, ("a", "b"), None),
        (["a", None, None, "a"], 2, ("a", "b"), "rank 3 runs on a, and its node 1 is b"),
        ([None, "a", "b", None], 2, (), None),
    ],
)
def test_ranks_fill_the_nodes_in_order(
    found: Sequence[str | None], ranks_per_node: int, planned: Sequence[str], line: str | None
) -> None:
    assert misplaced(found, ranks_per_node, planned) == line


def test_several_nodes_of_slurm_may_be_one_machine() -> None:
    assert rankenv.node({"SLURMD_NODENAME": "c2"}) == "c2"
    assert rankenv.node({}) == os.uname().nodename


def test_a_rank_that_ssh_starts_has_the_secrets_of_its_pod(tmp_path: Path) -> None:
    pod = tmp_path / "environ"
    pod.write_bytes(b"RINGDUEL_SECRETS=HF_TOKEN,OWN,GONE\0HF_TOKEN=a=b\0OWN=theirs\0HOME=/pod\0")
    env = {"OWN": "ours"}
    rankenv.take_secrets(env, pod)
    assert env == {"OWN": "ours", "HF_TOKEN": "a=b"}
    rankenv.take_secrets(env, tmp_path / "none")
    pod.write_bytes(b"HF_TOKEN=other\0")
    rankenv.take_secrets(env, pod)
    assert env == {"OWN": "ours", "HF_TOKEN": "a=b"}, "elsewhere nothing is taken"


def device(sys_folder: Path, *parts: str, numa: int) -> Path:
    path = sys_folder.joinpath("devices", *parts)
    path.mkdir(parents=True)
    (path / "numa_node").write_text(f"{numa}\n")
    return path


def test_how_far_a_gpu_is_from_a_network_device(tmp_path: Path) -> None:
    switch = ("pci0000:3a", "0000:3a:00.0")
    gpu = device(tmp_path, *switch, "0000:3b:00.0", numa=0)
    assert wiring.distance(gpu, device(tmp_path, *switch, "0000:3c:00.0", numa=0)) == "bridge"
    assert wiring.distance(gpu, device(tmp_path, "pci0000:3a", "0000:3a:01.0", "0000:3d:00.0", numa=0)) == "root"
    assert wiring.distance(gpu, device(tmp_path, "pci0000:17", "0000:17:00.0", numa=0)) == "numa"
    assert wiring.distance(gpu, device(tmp_path, "pci0000:85", "0000:85:00.0", numa=1)) == "system"
    # Where the kernel knows of no NUMA nodes, two root complexes share nothing that is known.
    one, other = (device(tmp_path, f"pci0001:0{k}", numa=-1) for k in range(2))
    assert wiring.distance(one, other) == "system"


def test_numa_nodes_are_those_of_the_cores_that_a_rank_may_use(tmp_path: Path) -> None:
    for node, cores in enumerate(("0-3,8\n", "4-7\n", "\n")):
        folder = tmp_path / "devices/system/node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores)
    assert wiring.numa_nodes([1, 8], tmp_path) == [0]
    assert wiring.numa_nodes([3, 4], tmp_path) == [0, 1]
    assert wiring.numa_nodes([64], tmp_path) == []


def test_libraries_are_told_by_what_is_mapped(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f10 r-xp 00000000 08:01 42    {}\n"
    paths = ("/opt/my mpi/lib/libmpi.so.40.30.5", "/usr/lib/libucp.so.0", "/usr/lib/libmpi_cxx.so.40", "[heap]")
    # A line without a path: memory of no file often follows a library's own.
    maps.write_text("".join(line.format(path) + "7f10-7f20 rw-p 00000000 00:00 0 \n" for path in paths))
    assert wiring.loaded(maps) == {"libmpi": paths[0], "libucp": paths[1]}


def test_no_mpi_and_one_whose_file_has_gone_are_not_asked() -> None:
    assert wiring.mpi_cuda_aware(None) is None
    assert wiring.mpi_cuda_aware("/nowhere/libmpi.so.40 (deleted)") is None


def test_a_process_may_read_its_own_memory_and_the_kernel_says_so() -> None:
    if (found := wiring.cma(os.getpid())) is False:
        pytest.skip("this sandbox forbids process_vm_readv")
    assert found is True


def test_this_process_is_described() -> None:
    found = wiring.of_rank()
    (loopback,) = [nic for nic in found["nics"] if nic["name"] == "lo"]
    assert (loopback["address"], loopback["numa_node"], loopback["to_gpu"]) == ("127.0.0.1", None, None)
    assert (
        found["tcp"]["tcp_congestion_control"] == Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    )
    assert found["ucx"] is False


def test_a_rank_on_another_node_than_planned_is_a_failed_launch_with_a_reason(tmp_path: Path) -> None:
    from test_duel_heat import Rig

    from benches.clusters import Place
    from launchers.spec import Command

    with Control() as control:
        rig = Rig(tmp_path, control)
        (turn,) = rig.turns(1)
        command = Command((sys.executable, "-c", "import time; time.sleep(60)"))
        with rig.heat as heat:
            entry = Entry(turn, tmp_path / "0", command, control, Place(names=("n0",)))
            heat.entries.append(entry)
            entry.hear(Event(entry.name, 0, {"phase": "setup", "node": "n1"}))
            (header,) = heat.finish()
    assert (header.status, header.reason) == ("failed", "rank 0 runs on n1, and its node 0 is n0")
