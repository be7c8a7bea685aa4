"""mpirun on one node, with the flags of Open MPI 4, Open MPI 5 and MPICH."""

from __future__ import annotations

from launchers.spec import Command, LaunchSpec, Mpi


def command(spec: LaunchSpec, mpi: Mpi) -> Command:
    """Ranks are bound to nothing, and may outnumber the slots: cores are counted before, affinity is ours."""
    flags = _mpich(spec) if mpi.flavour == "mpich" else _openmpi(spec, mpi)
    return Command((mpi.program, *flags, *spec.words), spec.env, spec.cwd)


def _openmpi(spec: LaunchSpec, mpi: Mpi) -> tuple[str, ...]:
    # Open MPI 5 still takes `--oversubscribe`, but as a deprecated word for the qualifier.
    mapping = ("slot", "--oversubscribe") if mpi.flavour == "openmpi4" else ("slot:OVERSUBSCRIBE",)
    return (
        *(("--allow-run-as-root",) if spec.as_root else ()),
        *("-np", str(spec.world_size)),
        # Inside an allocation of a batch system it would spread the ranks over the nodes of that.
        *("--host", f"localhost:{spec.world_size}"),
        *("--bind-to", "none"),
        *("--map-by", *mapping),
        # Explicit either way: Open MPI 4 turns it on by itself where ranks outnumber slots.
        *("--mca", "mpi_yield_when_idle", str(int(spec.yield_when_idle))),
        # By name only: the value comes from mpirun's own environment, whatever characters it holds.
        *(word for name in sorted(spec.env) for word in ("-x", name)),
    )


def _mpich(spec: LaunchSpec) -> tuple[str, ...]:
    return (
        *("-np", str(spec.world_size)),
        # Against a host list or batch system found in the environment.
        *("-rmk", "user", "-launcher", "fork", "-hosts", "localhost"),
        *("-bind-to", "none"),
        # The whole environment, values of any characters included; a HYDRA_ENV in the shell could restrict it.
        "-genvall",
    )
