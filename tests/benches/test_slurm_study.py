"""A study in Slurm without a Slurm: what the words ask for, the script, and following a job that stand-ins pretend."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from composing import resolved
from rich.console import Console

from benches import allocation, clusters, record, submit
from benches.commands import run_command
from benches.config import Resolved, compose
from benches.driver import command_for
from benches.errors import UserError
from benches.folder import open_study
from benches.schedule import Turn
from benches.submit import State
from launchers.processes import TOKEN
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.supervise import CHECKOUT
from launchers.tools import Tools

WORDS = ("engine=ddp", "model=mlp", "cluster=slurm")
SHELL = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}


def test_what_is_asked_of_slurm_belongs_to_the_study_and_not_to_its_cases() -> None:
    found = resolved(*WORDS, "cluster.slurm.partition=gpu", "cluster.slurm.time=30", "cluster.slurm.modules=[a,b]")
    assert found.slurm == SlurmSpec(partition="gpu", time="30", modules=("a", "b"))
    other = resolved(*WORDS, "cluster.slurm.time=2:00:00", "cluster.nic=ib0")
    assert other.slurm is not None
    assert other.slurm.time == "2:00:00"
    assert resolved(*WORDS).study.hash == found.study.hash
    assert resolved("engine=ddp", "model=mlp").slurm is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("cluster.slurm.partitions=a",), "cluster.slurm.partitions=a: unknown key; nearest: cluster.slurm.partition"),
        (("cluster.slurm.exclusive=3",), "cluster.slurm.exclusive=3: takes true or false"),
        (("cluster.slurm.modules=cuda",), "cluster.slurm.modules=cuda: takes a list of texts"),
        (("cluster.slurm.cpus_per_node=0",), "cluster.slurm.cpus_per_node=0: takes a whole number of at least 1"),
        (
            ("study.axes.cluster.slurm.partition=[a,b]",),
            "study.axes.cluster.slurm.partition=[a,b]: belongs to",
        ),
        (
            ("study.contestants.a.cluster.slurm.qos=x",),
            "study.contestants.a.cluster.slurm.qos=[x]: belongs to",
        ),
        (
            ("cluster=local", "cluster.slurm.qos=x"),
            "cluster.slurm={qos: x}: cluster=local asks nothing of Slurm",
        ),
        (("cluster.hosts=[a:1]",), "cluster.hosts=[a:1]: cluster=slurm has Slurm's nodes; takes []"),
        (("cluster.nodes=auto",), "cluster.nodes=auto: counts cluster.hosts; name a number"),
        (("device=cuda",), "device=cuda: cluster.slurm.gres asks for no GPU; set it, such as gpu:8"),
        (("cluster.launcher=torchrun",), "cluster.launcher=torchrun: srun starts the steps"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        commands(compose([*WORDS, *words], shell={}), tmp_path)
    assert str(error.value).startswith(line)


def test_a_part_of_a_study_cannot_be_in_slurm() -> None:
    with pytest.raises(UserError, match=r"^cluster=slurm: one allocation holds a whole study; choose it for all"):
        resolved("engine=ddp", "model=mlp", "study.axes.cluster=[slurm,local]", "cluster.nodes=1")


def commands(found: Resolved, folder: Path) -> list[tuple[str, ...]]:
    """Of each case, on nodes that have names for a plan only."""
    lines = []
    for one in found.study.contestants:
        nodes = clusters.planned(found.study, one.case, found.slurm).nodes
        lines.append(command_for(Turn(one, 0), folder / "case.yaml", folder, 1, Tools(), nodes).argv)
    return lines


def test_nodes_are_not_judged_by_this_machine() -> None:
    many = (*WORDS, "cluster.ranks_per_node=64", "cluster.threads_per_rank=4")
    assert compose([*many], shell={}).study.contestants[0].case.cluster.ranks_per_node == 64
    with pytest.raises(UserError, match=r"^cluster\.ranks_per_node=64: 64 ranks x 4 threads need 256 cores, and 4 may"):
        compose([*many], shell=SHELL)
    with pytest.raises(UserError, match=r"need 256 cores, and 128 may"):
        compose([*many, "cluster.slurm.cpus_per_node=128"], shell=SHELL)


@pytest.mark.parametrize("shell", [{}, SHELL])
def test_gpus_are_those_that_are_asked_for(shell: dict[str, str]) -> None:
    words = [*WORDS, "cluster.ranks_per_node=auto", "cluster.slurm.gres=gpu:a100:4"]
    case = compose(words, shell=shell).study.contestants[0].case
    assert (case.device, case.transport, case.cluster.ranks_per_node) == ("cuda", "nccl", 4)


def test_cores_of_an_allocation() -> None:
    assert [allocation.least_cpus(text) for text in ("4", "72(x2),36", "8(x16)")] == [4, 36, 8]


def test_a_study_larger_than_its_allocation() -> None:
    found = allocation.Allocation("7", "p", ("localhost",), 4)
    cluster = resolved(*WORDS, "cluster.nodes=2").study.contestants[0].case.cluster
    with pytest.raises(UserError, match=r"^cluster\.nodes=2: the allocation of job 7 has 1$"):
        clusters.slurm_nodes(found, cluster, SlurmSpec(), "ab")


def test_the_script_types_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/nowhere/__main__.py"])
    words = [*WORDS, "study.axes.cluster.nodes=[1,4,2]", "study.name=scaling", 'cluster.env={A: "it\'s $(id)"}']
    found = compose(words, shell={})
    lines = submit.script(found, words, tmp_path, as_json=True).splitlines()
    assert "#SBATCH --nodes=4" in lines
    assert "#SBATCH --job-name=ringduel-scaling" in lines
    options = ["--config-dir", str(tmp_path), "--json"]
    assert lines[-1] == "exec " + shlex.join([sys.executable, "-m", "benches", "run", *options, *words])
    (tmp_path / "ringduel").write_text("#!/bin/sh\n")
    (tmp_path / "ringduel").chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "ringduel")])
    assert submit.myself() == (str(tmp_path / "ringduel"),)


def test_plan_shows_the_script_and_the_steps(tmp_path: Path) -> None:
    words = [*WORDS, "cluster.slurm.account=mine", f"results={tmp_path}"]
    done = ringduel("plan", *words)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --account=mine\n" in done.stdout
    assert "--nodelist=node0,node1 " in done.stdout
    plan = json.loads(ringduel("plan", "--json", *words).stdout)
    assert plan["script"].startswith("#!/bin/bash\n#SBATCH --job-name=ringduel-study\n")
    assert {case["launcher"] for case in plan["cases"]} == {"srun"}


def ringduel(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    shell = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    start = [sys.executable, "-m", "benches", *words]
    return subprocess.run(start, cwd=CHECKOUT, env={**shell, **env}, capture_output=True, text=True, timeout=120)


def test_without_slurm_one_line(tmp_path: Path) -> None:
    done = ringduel("run", *WORDS, f"results={tmp_path}", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ringduel: cluster=slurm: no sbatch on the PATH; type this on a login node of the cluster\n"


class Slurm:
    """Stand-ins for Slurm's commands: a job writes what it is told to, and has the states that it is told to have."""

    def __init__(self, folder: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.results = folder, results
        self._program("sinfo", "echo gpu; echo debug")
        self._program("sbatch", f'printenv {TOKEN} >{folder}/leak; printf "%s\\n" "$@" >{folder}/asked; echo 7')
        first = f"line=$(head -n 1 {folder}/states); [ $(wc -l <{folder}/states) = 1 ] || sed -i 1d {folder}/states"
        self._program("scontrol", f'{first}; echo "$line"')
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setattr(submit, "ASK_S", 0.05)
        monkeypatch.setattr(submit, "LOOK_S", 0.02)
        self.states("JobState=COMPLETED ExitCode=0:0")

    def _program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def states(self, *lines: str) -> None:
        (self.folder / "states").write_text("\n".join(lines) + "\n")

    @property
    def asked(self) -> list[str]:
        """Words that sbatch was given; empty: none."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def writes(self, **streams: str) -> None:
        (self.results / "study.slurm").mkdir(parents=True, exist_ok=True)
        for name, text in streams.items():
            (self.results / "study.slurm" / f"slurm-7.{name}").write_text(text)

    def run(self, *words: str) -> int:
        given = [*WORDS, f"results={self.results}", *words]
        return submit.submit_and_follow(compose(given, shell={}), given, None, False, Console(stderr=True))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (tmp_path / "bin").mkdir()
    return Slurm(tmp_path / "bin", tmp_path / "results", monkeypatch)


def test_a_job_is_submitted_and_what_it_writes_is_shown(slurm: Slurm, capfd: pytest.CaptureFixture[str]) -> None:
    slurm.writes(out="a result\n", err="progress\n")
    slurm.states("JobState=PENDING Reason=Resources", "JobState=RUNNING", "JobState=COMPLETED ExitCode=0:0")
    assert slurm.run("cluster.slurm.partition=debug") == 0
    folder = slurm.results / "study.slurm"
    assert slurm.asked == ["--parsable", f"--chdir={folder}", str(folder / "job.sh")]
    assert "#SBATCH --partition=debug\n" in (folder / "job.sh").read_text()
    assert (slurm.folder / "leak").read_text() == "", "a job that carries our token would be killed with our own"
    shown = capfd.readouterr()
    assert shown.out == "a result\n"
    lines = shown.err.splitlines()
    assert lines[0].startswith("study study: submitted as job 7; ")
    assert [line for line in lines if line.startswith("job 7: ")] == ["job 7: PENDING (Resources)", "job 7: RUNNING"]
    assert "progress" in lines


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("JobState=COMPLETED ExitCode=0:0", 0),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0", 1),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0", 2),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=130:0", 130),
        ("JobState=FAILED Reason=None ExitCode=0:9", 1),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0", 130),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", 130),
        ("JobState=NODE_FAIL Reason=NodeDown ExitCode=1:0", 130),
    ],
)
def test_the_status_is_that_of_the_driver_in_the_job(slurm: Slurm, state: str, status: int) -> None:
    slurm.writes(err="")
    slurm.states(state)
    assert slurm.run() == status


def test_a_job_that_is_there_is_followed_and_no_other_submitted(
    slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm.writes(err="")
    (slurm.results / "study.slurm" / "job").write_text("7")
    slurm.states("JobState=RUNNING", "JobState=RUNNING", "JobState=COMPLETED ExitCode=0:0")
    assert slurm.run() == 0
    assert slurm.asked == []
    assert "job 7 runs it already" in capfd.readouterr().err
    assert slurm.run() == 0
    assert slurm.asked, "one that has ended is not taken up"


def test_a_study_with_nothing_but_interrupted_launches_left_is_submitted(slurm: Slurm) -> None:
    words = [*WORDS, f"results={slurm.results}", "study.launches=1"]
    folder = open_study(compose(words, shell={}).study, slurm.results)
    for one in folder.study.contestants:
        folder.launch(one, 0).mkdir(parents=True)
        (folder.launch(one, 0) / record.HEADER).write_text('{"status": "interrupted"}')
    slurm.writes(err="")
    assert run_command(words, None, False, Console(stderr=True)) == 0
    assert slurm.asked, "the launches have records, and are to be done again"


def test_an_interrupt_lets_the_job_go_on(slurm: Slurm, capfd: pytest.CaptureFixture[str]) -> None:
    slurm.states("JobState=RUNNING")
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    assert slurm.run() == 130
    assert "job 7 goes on; scancel 7 ends it, the same command follows it again" in capfd.readouterr().err


def test_an_unknown_partition_names_those_that_are_there(slurm: Slurm) -> None:
    with pytest.raises(UserError, match=r"^cluster\.slurm\.partition=gpus: unknown; choices: debug, gpu$"):
        slurm.run("cluster.slurm.partition=gpus")
    assert slurm.asked == []


def test_the_shell_does_not_overrule_the_script(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    slurm._program("sbatch", f"printenv SBATCH_PARTITION >{slurm.folder}/leak; echo 7")
    slurm.run()
    assert (slurm.folder / "leak").read_text() == ""


def test_what_sbatch_says_is_told(slurm: Slurm) -> None:
    slurm._program("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1")
    with pytest.raises(UserError, match=r"^cluster=slurm: sbatch refuses: .*: Invalid qos specification$"):
        slurm.run()
    assert not (slurm.results / "study.slurm" / "job").exists()


@pytest.mark.parametrize(
    ("program", "state"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", State("")),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", None),
    ],
)
def test_slurm_that_does_not_answer_is_not_the_end(slurm: Slurm, program: str, state: State | None) -> None:
    slurm._program("scontrol", program)
    assert submit.ask("7") == (state or State("PENDING", "Slurm does not answer"))
    assert submit.ask("7").ended == (state is not None)


def test_nodes_of_an_allocation(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm._program(
        "scontrol", '[ "$3" = "n[1-2]" ] && echo localhost && echo "scontrol: an old plugin" >&2; echo n-2.x'
    )
    shell: dict[str, Any] = {**SHELL, "SLURM_JOB_PARTITION": "debug"}
    found = allocation.current(shell)
    assert found == allocation.Allocation("7", "debug", ("localhost", "n-2.x"), 4)
    with pytest.raises(UserError, match=r"^cluster=slurm: this is no allocation"):
        allocation.current({})


def test_nodes_answer_by_their_numbers(slurm: Slurm) -> None:
    nodes = SlurmNodes(("a", "b"), 4, "ab", "a", SlurmSpec())
    slurm._program("srun", "echo '1: two'; echo 'srun: noise'; echo '0: one'; echo '1: three'")
    assert allocation.ask_nodes(("py", "-c", "x"), nodes, 5) == [["one"], ["two", "three"]]
    slurm._program("srun", "echo '1: slurmstepd: error: execve(): py: No such file or directory' >&2; exit 2")
    with pytest.raises(UserError, match=r"^cluster=slurm: py does not run on each node: 1: slurmstepd: .*directory$"):
        allocation.ask_nodes(("py", "-c", "x"), nodes, 5)


def test_a_node_that_gives_no_answer_is_one_line(slurm: Slurm) -> None:
    nodes = SlurmNodes(("a", "b"), 4, "ab", "a", SlurmSpec())
    slurm._program("srun", "echo '0: Lmod is loaded'; echo '1: Lmod is loaded'")
    with pytest.raises(UserError, match=r"^cluster=slurm: a: py does not answer there \(Lmod is loaded\); install"):
        allocation.look(nodes, "py")


@pytest.mark.parametrize(("line", "good"), [("exit 0", True), ("echo 'srun: error: no PMIx' >&2; exit 1", False)])
def test_pmix_is_tried(slurm: Slurm, line: str, good: bool) -> None:
    nodes = SlurmNodes(("a", "b"), 4, "ab", "a", SlurmSpec())
    slurm._program("srun", f'case "$*" in *--mpi=pmix*true) {line};; esac')
    if good:
        allocation.check_mpi(nodes)
    else:
        with pytest.raises(UserError, match=r"no pmix that works \(srun: error: no PMIx\); .*=mpirun$"):
            allocation.check_mpi(nodes)
