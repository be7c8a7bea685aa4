"""The allocation of Slurm that a driver is in: its nodes, as Slurm says, and what they answer when they are asked."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benches.errors import UserError
from benches.machine import Machine
from launchers import hostcheck, slurm
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.supervise import last_line, output

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"
CPUS = "SLURM_JOB_CPUS_PER_NODE"
HOST = re.compile(r"[A-Za-z0-9_][\w.-]*")
LIMIT_S = 60.0
"""For an answer of Slurm itself, and on top of what a command on the nodes may take."""


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave."""

    job: str
    partition: str
    hosts: tuple[str, ...]
    """In Slurm's order."""
    cpus: int
    """Of the node that has the fewest."""


def inside(shell: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in an allocation."""
    return JOB in shell


def node(asked: SlurmSpec, shell: Mapping[str, str]) -> Machine:
    """A node as far as it is known: by what is asked for, and in an allocation by what Slurm gave. This machine may be
    another one; outside of an allocation nobody knows how many cores a node has."""
    given = least_cpus(shell[CPUS]) if inside(shell) and CPUS in shell else None
    return Machine(asked.cpus_per_node or given or sys.maxsize, lambda _: slurm.gpus(asked.gres))


def least_cpus(text: str) -> int:
    """The least number in what SLURM_JOB_CPUS_PER_NODE says, such as `72(x2),36`."""
    return min(int(count) for count in re.findall(r"(?:^|,)(\d+)", text))


def current(shell: Mapping[str, str] = os.environ) -> Allocation:
    """The allocation that this process is in. Raises UserError where it is in none."""
    if not inside(shell):
        raise UserError(f"cluster=slurm: this is no allocation: {JOB} is not set")
    code, text = output(["scontrol", "show", "hostnames", shell.get(NODES, "")], limit_s=LIMIT_S)
    # Warnings stand in the same output.
    hosts = tuple(line for line in text.split("\n") if HOST.fullmatch(line))
    if code != 0 or not hosts:
        raise UserError(f"cluster=slurm: scontrol does not name the nodes of job {shell[JOB]}: {last_line(text)}")
    cpus = least_cpus(shell.get(CPUS, "1"))
    return Allocation(shell[JOB], shell.get("SLURM_JOB_PARTITION", ""), hosts, cpus)


def ask_nodes(words: Sequence[str], nodes: SlurmNodes, limit_s: float) -> list[list[str]]:
    """What each node writes when it runs these words, line by line. Raises UserError where they fail on one."""
    code, text = output(slurm.each_node(words, nodes), limit_s=LIMIT_S + limit_s)
    if code != 0:
        # srun itself says last which task it was, and not why.
        said = "\n".join(line for line in text.splitlines() if not line.startswith("srun: "))
        why = f"no answer within {LIMIT_S + limit_s:g} s" if code is None else last_line(said or text)
        raise UserError(f"cluster=slurm: {words[0]} does not run on each node: {why}")
    lines = slurm.by_node(text)
    return [lines.get(number, []) for number in range(len(nodes.hosts))]


def look(nodes: SlurmNodes, python: str) -> list[hostcheck.Answer]:
    """What each node says of itself, node by node. Raises UserError where one cannot be asked."""
    asked = time.time()
    said = ask_nodes(hostcheck.probe_words(python, nodes.hosts), nodes, hostcheck.LIMIT_S)
    middle = (asked + time.time()) / 2
    pairs = zip(nodes.hosts, said, strict=True)
    return [hostcheck.answer(f"cluster=slurm: {host}", python, "\n".join(lines), middle) for host, lines in pairs]


def check_mpi(nodes: SlurmNodes) -> None:
    """Raise UserError where srun cannot start ranks that find each other by PMIx.

    It is tried: `srun --mpi=list` names plugins too whose library is missing.
    """
    slurm.check_pmix(*output(slurm.each_node(("true",), nodes, "pmix"), limit_s=LIMIT_S))
