"""torchrun on one node: it picks a free port by itself, so two studies never meet on one."""

from __future__ import annotations

from launchers.spec import Command, LaunchSpec


def command(spec: LaunchSpec) -> Command:
    """torchrun of the ranks' own interpreter, which need not be on the PATH."""
    words = (
        *(spec.python, "-m", "torch.distributed.run"),
        "--standalone",
        # Else ranks look each other up by host name, and hang for minutes where that does not resolve.
        "--local-addr=127.0.0.1",
        *agent_options(spec),
    )
    return Command((*words, *spec.words), spec.env, spec.cwd)


def agent_options(spec: LaunchSpec) -> tuple[str, ...]:
    """What every torchrun is given, wherever it runs."""
    return (
        f"--nproc-per-node={spec.ranks_per_node}",
        # Zero is the default, which a PET_MAX_RESTARTS in the shell would override: a restarted rank spoils a launch.
        "--max-restarts=0",
        # Seconds between two looks at the ranks. By default 0.1, which takes 0.6 % of a core, of ranks that are stopped
        # too, and that no other launcher takes.
        "--monitor-interval=0.5",
        # The interpreter is ours to name: torchrun would take PYTHON_EXEC from the shell.
        "--no-python",
    )
