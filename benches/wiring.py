"""How a rank is wired to its machine and the others: NUMA, GPU and network devices, TCP, and what MPI may do.

Read from /sys and /proc (Linux). What the kernel does not say is null.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

SYS, PROC = Path("/sys"), Path("/proc")
TCP = ("tcp_congestion_control", "tcp_slow_start_after_idle")
"""Of the rank's network namespace. The second is why a stopped contestant's first steps afterwards are not timed."""


def of_rank() -> dict[str, Any]:
    """What a record says of each rank; the ranks must have joined."""
    libraries = loaded()
    return {
        "numa_nodes": numa_nodes(os.sched_getaffinity(0)),
        "gpu": (own := gpu()),
        "nics": nics(own),
        "tcp": {name: _text(PROC / "sys/net/ipv4" / name) for name in TCP},
        "ucx": "libucp" in libraries,
        "cma": cma(os.getppid()),
        "mpi_cuda_aware": mpi_cuda_aware(libraries.get("libmpi")),
    }


def numa_nodes(cores: Iterable[int], sys: Path = SYS) -> list[int]:
    """NUMA nodes on which these cores lie; more than one: memory may be a hop away."""
    own = set(cores)
    files = (sys / "devices/system/node").glob("node[0-9]*/cpulist")
    return sorted(int(file.parent.name.removeprefix("node")) for file in files if own & _cores(_text(file) or ""))


def gpu() -> dict[str, Any] | None:
    """The rank's GPU: `pci`, its address, and `numa_node`; null on the CPU."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    # As in /sys; torch before 2.6 does not say them.
    known = hasattr(found, "pci_bus_id")
    pci = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0" if known else None
    return {"pci": pci, "numa_node": _numa(SYS / "bus/pci/devices" / pci) if pci else None}


def nics(own: Mapping[str, Any] | None = None, sys: Path = SYS) -> list[dict[str, Any]]:
    """Network devices that are up: `name`, IPv4 `address`, `speed_mbps`, `numa_node`, and `to_gpu`, how far the rank's
    GPU is. Virtual devices have no place in the machine."""
    addresses = psutil.net_if_addrs()
    pci = sys / "bus/pci/devices" / own["pci"] if own and own["pci"] else None
    return [
        {
            "name": name,
            "address": next((one.address for one in addresses.get(name, []) if one.family == socket.AF_INET), None),
            "speed_mbps": stat.speed,
            "numa_node": _numa(device := sys / "class/net" / name / "device"),
            "to_gpu": distance(pci, device) if pci and device.exists() else None,
        }
        for name, stat in sorted(psutil.net_if_stats().items())
        if stat.isup
    ]


def distance(one: Path, other: Path) -> str:
    """What two PCI devices share: a bridge (nvidia-smi's PIX, PXB), the root complex (PHB), the numa node (NODE), or
    the system alone (SYS)."""
    common = Path(os.path.commonpath([device.resolve() for device in (one, other)])).parts
    root = next((place for place, part in enumerate(common) if part.startswith("pci")), None)
    if root is not None:
        return "bridge" if len(common) > root + 1 else "root"
    nodes = {_numa(one), _numa(other)}
    return "numa" if len(nodes) == 1 and None not in nodes else "system"


def loaded(maps: Path = PROC / "self/maps") -> dict[str, str]:
    """Paths of libmpi and libucp (UCX) where this process has loaded them, by these names."""
    found = re.findall(r"\s(/.*/(libmpi|libucp)\.so[^/\n]*)$", maps.read_text(), re.MULTILINE)
    return {name: path for path, name in found}


def cma(pid: int) -> bool | None:
    """Whether this process may read the memory of another one of its user (cross-memory attach), which MPI then does on
    one node. `pid`: one that is no descendant, as no other rank is. Null: the kernel's answer is unclear."""

    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    here = ctypes.create_string_buffer(1)
    local, remote = Piece(ctypes.addressof(here), 1), Piece(None, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    # Nothing lies at address 0: who may read is told that, who may not is told so first.
    libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return {errno.EFAULT: True, errno.EPERM: False, errno.ENOSYS: False}.get(ctypes.get_errno())


def mpi_cuda_aware(libmpi: str | None) -> bool | None:
    """Whether the MPI that this process runs on takes device memory; null where it runs on none, or where its file has
    gone since."""
    if libmpi is None or not Path(libmpi).exists():
        return None
    library, running = ctypes.CDLL(libmpi), ctypes.c_int(0)
    library.MPI_Initialized(ctypes.byref(running))
    if not running.value:
        return None
    question = getattr(library, "MPIX_Query_cuda_support", None)
    return bool(question is not None and question())


def _cores(text: str) -> set[int]:
    """Core numbers of a list such as 0-3,8."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return {core for first, dash, last in spans for core in range(int(first), int(last if dash else first) + 1)}


def _numa(device: Path) -> int | None:
    text = _text(device / "numa_node")
    # The kernel says -1 where there is but one.
    return int(text) if text is not None and int(text) >= 0 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
