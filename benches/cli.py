"""`ringduel`: run, plan, report, compare, publish, doctor, profile, install-horovod.

Results go to standard output, the rest to standard error.
Exit status: 0 done, 1 a case, a parity check or a gate failed, 2 the user's mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benches.errors import UserError
from benches.install import BuildError

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options, rest = parser().parse_known_args(arguments)
    console = Console(stderr=True, soft_wrap=True)
    try:
        status = int(options.command(options, rest, console))
        # What is left of the output: a reader that has gone is noticed here, and not at the exit.
        print(end="", flush=True)
        return status
    except UserError as error:
        print(f"ringduel: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    except BuildError as error:
        print(f"ringduel: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("ringduel: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has closed it; that is no failure of ours. The exit flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def parser() -> argparse.ArgumentParser:
    """The command line, without the `key=value` words that `compose` reads."""
    top = argparse.ArgumentParser(prog="ringduel", description="Horovod or DDP? Measure it for your model.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, function, text in (
        ("run", run, "run a study: ringduel run [experiment=NAME] [key=value ...]"),
        ("plan", plan, "show its cases, time and exact commands; start nothing"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--config-dir", type=Path, metavar="DIR", help="your own conf/, added to ours")
        command.add_argument("--json", action="store_true", help="one JSON object on standard output")
        command.set_defaults(command=function)
    _add_report(commands.add_parser("report", help="write a study's report again, from its records"))
    _add_compare(commands.add_parser("compare", help="two studies, joined on case: what got slower"))
    _add_publish(commands.add_parser("publish", help="copy a finished study to a set that others can check"))
    _add_doctor(commands.add_parser("doctor", help="what can run here, what is missing, the remedy"))
    _add_profile(commands.add_parser("profile", help="time a model layer by layer, for an emulated one"))
    _add_install(commands.add_parser("install-horovod", help="build Horovod for the torch that is installed"))
    return top


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", nargs="?", help="folder or name (default: the newest)")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the study's report/)")
    formats = ["html", "md", "csv", "latex"]
    command.add_argument("--format", nargs="+", choices=formats, default=formats, help="(default: all)")
    command.add_argument("--results", type=Path, default=Path("results/runs"), help="where studies lie (%(default)s)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(command=report)


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", help="folder or name of the study before")
    command.add_argument("b", help="of the one after")
    command.add_argument("--fail-on-regression", action="store_true", help="exit 1 where the data support a regression")
    command.add_argument("--results", type=Path, default=Path("results/runs"), help="where studies lie (%(default)s)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(command=compare)


def _add_publish(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", help="folder or name")
    command.add_argument("--name", help="of the machine (default: its CPU and cores, as the records say)")
    command.add_argument("--results", type=Path, default=Path("results/runs"), help="where studies lie (%(default)s)")
    home = Path("results/published")
    command.add_argument("--published", type=Path, default=home, help="where sets lie (%(default)s)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(command=publish)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config-dir", type=Path, metavar="DIR", help="your own conf/, added to ours")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(command=doctor)


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, metavar="PATH", help="file to write (default: standard output)")
    command.add_argument(
        "--runs", type=int, default=1, metavar="N", help="profile it in N fresh processes, and average"
    )
    command.add_argument("--step-s", type=float, metavar="S", help="scale all times so that a step takes S seconds")
    command.add_argument("--config-dir", type=Path, metavar="DIR", help="your own conf/, added to ours")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.set_defaults(command=profile)


def _add_install(command: argparse.ArgumentParser) -> None:
    command.add_argument("--gpu", action="store_true", help="build with NCCL")
    command.add_argument("--force", action="store_true", help="replace the Horovod that is there")
    command.set_defaults(command=install_horovod)


def run(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Run a study, then show and write what it found."""
    from benches.commands import run_command

    return run_command(words, options.config_dir, options.json, console)


def plan(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Show what `run` would do."""
    from benches.plan import plan_command

    return plan_command(words, options.config_dir, options.json)


def report(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Render a study again."""
    from benches.commands import report_command

    _no_more(words)
    return report_command(options.study, options.results, options.out, options.format, options.json)


def doctor(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Look at this machine."""
    from benches.doctor import doctor_command

    return doctor_command(words, options.config_dir, options.json)


def profile(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Time a model layer by layer."""
    from benches.profile import profile_command

    return profile_command(words, options)


def install_horovod(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Build and install Horovod."""
    from benches.install.horovod import install

    _no_more(words)
    install(gpu=options.gpu, force=options.force)
    return DONE


def compare(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Two studies side by side."""
    from benches.commands import compare_command

    _no_more(words)
    return compare_command(options.a, options.b, options.results, options.fail_on_regression, options.json)


def publish(options: argparse.Namespace, words: list[str], console: Console) -> int:
    """Copy a finished study to a published set."""
    from benches.commands import publish_command

    _no_more(words)
    return publish_command(options.study, options.results, options.published, options.name, options.json)


def _no_more(words: list[str]) -> None:
    if words:
        raise UserError(f"{words[0]}: this command takes no such word; see --help")
