"""Which launcher serves which case, and what is refused before anything starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benches.errors import UserError
from benches.spec import Case, build
from launchers import choose, nodes, slurm
from launchers.remote import SshNodes
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.spec import Command, LaunchSpec, Mpi
from launchers.tools import Packages, Tools

ALL = Packages(torch=True, horovod=True, mpi4py=True, libraries=())


class Present(Tools):
    """An environment that holds what the test says."""

    def __init__(self, packages: Packages = ALL) -> None:
        self.present = packages

    def packages(self, python: str) -> Packages:
        return self.present

    def horovodrun(self, python: str) -> tuple[str, ...]:
        return ("/env/bin/horovodrun",)

    def mpi(self, python: str) -> Mpi:
        return Mpi("/env/bin/mpirun", "openmpi5", "5.0.11")


def case(cell: str, ranks: int = 1, device: str = "cpu", **cluster: Any) -> Case:
    engine, _, transport = cell.partition("/")
    settings = {engine: {}} if engine != "local" else {}
    content = {
        "engine": engine,
        "transport": transport or None,
        "device": device,
        "model": {"name": "mlp", "factory": "m:f", "batch": "m:b"},
        "data": {"per_rank_batch": 4},
        "optimizer": {},
        "cluster": {"ranks_per_node": ranks, **cluster},
    }
    return build(Case, {**content, **settings})


def spec(**env: str) -> LaunchSpec:
    return LaunchSpec("/env/bin/python", ("-m", "benches.worker"), nodes=1, ranks_per_node=2, cwd="/", env=env)


@pytest.mark.parametrize(
    ("cell", "device", "launcher", "first"),
    [
        ("local", "cpu", "direct", ["/env/bin/python", "-m", "benches.worker"]),
        ("ddp/gloo", "cpu", "torchrun", ["/env/bin/python", "-m", "torch.distributed.run"]),
        ("ddp/mpi", "cpu", "mpirun", ["/env/bin/mpirun", "-np", "2"]),
        ("ddp/nccl", "cuda", "torchrun", ["/env/bin/python", "-m", "torch.distributed.run"]),
        ("horovod/gloo", "cpu", "horovodrun", ["/env/bin/horovodrun", "--gloo"]),
        ("horovod/nccl", "cuda", "horovodrun", ["/env/bin/horovodrun", "--gloo"]),
        ("horovod/mpi", "cpu", "mpirun", ["/env/bin/mpirun", "-np", "2"]),
    ],
)
def test_launcher_by_cell(cell: str, device: str, launcher: str, first: list[str]) -> None:
    for asked in ("auto", launcher):
        one = case(cell, device=device, launcher=asked)
        assert choose.launcher(one) == launcher
        words = choose.command(one, spec(), Present()).argv
        assert list(words[: len(first)]) == first


@pytest.mark.parametrize(
    ("cell", "asked", "serving"),
    [
        ("local", "torchrun", "direct"),
        ("ddp/gloo", "mpirun", "torchrun"),
        ("ddp/mpi", "torchrun", "mpirun"),
        ("horovod/gloo", "mpirun", "horovodrun"),
        ("horovod/mpi", "horovodrun", "mpirun"),
        ("horovod/gloo", "direct", "horovodrun"),
    ],
)
def test_a_launcher_that_cannot_start_the_cell_is_refused(cell: str, asked: str, serving: str) -> None:
    with pytest.raises(UserError) as error:
        choose.command(case(cell, launcher=asked), spec(), Present())
    assert str(error.value) == f"cluster.launcher={asked}: cannot start {cell}; choices: auto, {serving}"


SITE = SshNodes(("a", "b"), token="000000ff00")


@pytest.mark.parametrize("kind", ["virtual", "hosts"])
@pytest.mark.parametrize(
    ("cell", "same"),
    [
        ("ddp/gloo", lambda spec: nodes.torchrun(spec, SITE)),
        ("horovod/gloo", lambda spec: nodes.horovodrun(spec, SITE, ("/env/bin/horovodrun",))),
        ("horovod/mpi", lambda spec: nodes.mpirun(spec, SITE, Mpi("/env/bin/mpirun", "openmpi5", "5.0.11"))),
        ("local", lambda spec: nodes.direct(spec, SITE)),
    ],
)
def test_on_several_nodes_the_same_launcher_reaches_them(
    kind: str, cell: str, same: Callable[[LaunchSpec], Command]
) -> None:
    one = case(cell, name=kind)
    assert choose.command(one, spec(A="1"), Present(), SITE) == same(spec(A="1"))
    with pytest.raises(UserError, match=r"^cluster\.launcher="):
        choose.command(
            case(cell, name=kind, launcher="direct" if cell != "local" else "mpirun"), spec(), Present(), SITE
        )


def test_one_process_by_itself_is_started_on_the_first_node() -> None:
    command = choose.command(case("local", name="hosts"), spec(A="1"), Present(), SITE)
    (line,) = command.argv[4:]
    assert shlex.split(line)[-2] == "a"
    assert command.argv[:4] == nodes.fanout([])


NODES = SlurmNodes(("n1", "n2"), 8, "000000ff00", "n1", SlurmSpec())
MPI = Mpi("/env/bin/mpirun", "openmpi5", "5.0.11")


@pytest.mark.parametrize(
    ("cell", "asked", "name", "same"),
    [
        ("local", "auto", "srun", lambda spec: slurm.direct_step(spec, NODES)),
        ("ddp/gloo", "auto", "srun", lambda spec: slurm.torchrun_step(spec, NODES)),
        ("ddp/gloo", "mpirun", "srun", lambda spec: slurm.torchrun_step(spec, NODES)),
        ("horovod/gloo", "srun", "srun", lambda spec: slurm.horovod_gloo_step(spec, NODES)),
        ("horovod/mpi", "auto", "srun", lambda spec: slurm.mpi_step(spec, NODES, "openmpi5")),
        ("horovod/mpi", "mpirun", "mpirun", lambda spec: slurm.mpirun(spec, NODES, MPI)),
    ],
)
def test_in_slurm(cell: str, asked: str, name: str, same: Callable[[LaunchSpec], Command]) -> None:
    one = case(cell, name="slurm", launcher=asked)
    assert choose.launcher(one) == name
    assert choose.command(one, spec(A="1"), Present(), NODES) == same(spec(A="1"))


def test_in_slurm_mpirun_leaves_the_container() -> None:
    inside = replace(NODES, asked=SlurmSpec(container="/img.sqsh"))
    with pytest.raises(UserError, match=r"^cluster\.launcher=mpirun: .*cluster\.slurm\.container=/img\.sqsh; "):
        choose.command(case("horovod/mpi", name="slurm", launcher="mpirun"), spec(), Present(), inside)


def test_in_slurm_srun_or_mpirun_start_the_ranks() -> None:
    with pytest.raises(UserError, match=r"^cluster\.launcher=torchrun: .*; choices: auto, srun, mpirun$"):
        choose.launcher(case("ddp/gloo", name="slurm", launcher="torchrun"))
    with pytest.raises(UserError, match=r"^cluster\.launcher=srun: cannot start ddp/gloo; choices: auto, torchrun$"):
        choose.launcher(case("ddp/gloo", launcher="srun"))


def test_horovod_absent_refuses_horovod_alone() -> None:
    absent = Present(Packages(torch=True, horovod=False, mpi4py=False, libraries=()))
    for cell in ("horovod/gloo", "horovod/mpi"):
        with pytest.raises(UserError, match=r"^engine=horovod: .*ringduel install-horovod$"):
            choose.command(case(cell), spec(), absent)
    assert choose.command(case("ddp/gloo"), spec(), absent).argv[0] == "/env/bin/python"
    with pytest.raises(UserError, match=r"^transport=mpi: .*run: /env/bin/python -m pip install 'mpi4py>=4.1'$"):
        choose.command(case("ddp/mpi"), spec(), absent)


def test_an_environment_without_torch_is_refused() -> None:
    with pytest.raises(UserError, match=r"^python=/env/bin/python: its environment has no torch"):
        choose.command(case("local"), spec(), Present(Packages(torch=False, horovod=False, mpi4py=False, libraries=())))


@pytest.mark.parametrize(
    ("name", "value"), [("A-B", "1"), ("", "1"), ("2A", "1"), ("A B", "1"), ("A\n", "1"), ("A", "\0")]
)
def test_what_no_environment_can_hold_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=r"^cluster\.env[.=]") as error:
        choose.command(case("ddp/gloo"), spec(**{name: value}), Present())
    assert "\n" not in str(error.value)
