"""horovodrun with its gloo controller on one node (Horovod 0.28.1)."""

from __future__ import annotations

from launchers.spec import Command, LaunchSpec

# horovodrun sets these in each rank, over whatever it was given (horovod/runner/gloo_run.py); `lo` on one node.
REPLACED = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME", "PYTHONUNBUFFERED")


def command(spec: LaunchSpec, program: tuple[str, ...]) -> Command:
    """`program`: the words that start horovodrun."""
    words = (
        *program,
        "--gloo",
        # A cache of earlier checks in the home folder, which launches side by side would write at once.
        "--disable-cache",
        *("-np", str(spec.world_size)),
    )
    return Command((*words, *restore(spec), *spec.words), spec.env, spec.cwd)


def restore(spec: LaunchSpec) -> tuple[str, ...]:
    """Words before the interpreter that give the ranks the same NCCL and gloo variables as other launchers do."""
    unset = () if "NCCL_SOCKET_IFNAME" in spec.env else ("-u", "NCCL_SOCKET_IFNAME")
    return ("env", *unset, *(f"{name}={spec.env[name]}" for name in REPLACED if name in spec.env))
