"""Slurm: the batch script and the steps, line by line; hostile words; and Horovod's rendezvous without horovodrun."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from benches.errors import UserError
from benches.spec import build
from launchers import slurm
from launchers.rendezvous import Store
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.spec import Command, LaunchSpec, Mpi
from launchers.tools import Tools

HOSTILE = ("a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "~", "é", "!x", "#y")
HOSTS, TOKEN = ("n1", "n2", "n3"), "000000ff00"
RANK = ["py", "-m", "benches.worker", "it's a case.yaml"]


def spec(**changes: object) -> LaunchSpec:
    content: dict[str, object] = {
        "python": "py",
        "args": ("-m", "benches.worker", "it's a case.yaml"),
        "nodes": 2,
        "ranks_per_node": 8,
        "cwd": "/home/x y",
        "env": {"B": "$(id) 'q'\n"},
    }
    return LaunchSpec(**{**content, **changes})  # type: ignore[arg-type]


def site(hosts: tuple[str, ...] = HOSTS, cpus: int = 64, nic: str | None = None, **asked: object) -> SlurmNodes:
    return SlurmNodes(hosts, cpus, TOKEN, "n0", build(SlurmSpec, asked), nic)


def step(tasks: int, cpus: int, *more: str) -> list[str]:
    return [
        "srun",
        "--nodes=2",
        f"--ntasks={2 * tasks}",
        f"--ntasks-per-node={tasks}",
        "--distribution=block",
        "--nodelist=n1,n2",
        "--overlap",
        "--mem=0",
        f"--cpus-per-task={cpus}",
        "--cpu-bind=none",
        *more,
        "--kill-on-bad-exit=1",
        "--export=ALL",
    ]


def test_script_line_by_line() -> None:
    asked = SlurmSpec(
        partition="gpu,debug",
        account="proj_1",
        qos="high",
        gres="gpu:a100:8",
        constraint="(a100&ib)|h100",
        time="1-02:00:00",
        cpus_per_node=64,
        modules=("cuda/12.4", "it's"),
        setup=(". venv/bin/activate", 'export A="$B"'),
    )
    driver = ("python", "-m", "benches", "run", "study.name=it's $(id)")
    assert slurm.batch_script(asked, "scaling", 4, driver, "/home/x y").splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=ringduel-scaling",
        "#SBATCH --nodes=4",
        "#SBATCH --partition=gpu,debug",
        "#SBATCH --account=proj_1",
        "#SBATCH --qos=high",
        "#SBATCH --gres=gpu:a100:8",
        "#SBATCH --constraint=(a100&ib)|h100",
        "#SBATCH --time=1-02:00:00",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=64",
        "#SBATCH --signal=B:TERM@120",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=slurm-%j.out",
        "#SBATCH --error=slurm-%j.err",
        "",
        "module load cuda/12.4",
        "module load 'it'\"'\"'s'",
        ". venv/bin/activate",
        'export A="$B"',
        "cd -- '/home/x y' || exit 2",
        "exec python -m benches run 'study.name=it'\"'\"'s $(id)'",
    ]


def test_what_is_not_asked_for_is_not_in_the_script() -> None:
    text = slurm.batch_script(SlurmSpec(exclusive=False), "s", 1, ("true",), "/")
    asked = [line.split()[1].split("=")[0] for line in text.splitlines() if line.startswith("#SBATCH")]
    always = ["--job-name", "--nodes", "--mem", "--ntasks-per-node", "--signal", "--requeue", "--open-mode"]
    assert asked == [*always, "--output", "--error"]


def test_the_driver_of_the_script_gets_its_words_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "it's $(here)\n"
    folder.mkdir()
    show = (sys.executable, "-c", "import json,os,sys; print(json.dumps([sys.argv[1:], os.getcwd()]))", *HOSTILE)
    text = slurm.batch_script(SlurmSpec(), "s", 1, show, str(folder))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout) == [list(HOSTILE), str(folder)]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("key", ["partition", "account", "qos", "gres", "constraint", "time", "reservation"])
@pytest.mark.parametrize("value", ["a b", "a\n#SBATCH --uid=0", "$(id)", "it's", 'a"b', "a#b", "`id`", "a\\b"])
def test_a_value_that_sbatch_would_read_in_its_own_way_is_refused(key: str, value: str) -> None:
    with pytest.raises(UserError) as error:
        slurm.batch_script(build(SlurmSpec, {key: value}), "s", 1, ("true",), "/")
    assert str(error.value).startswith(f"cluster.slurm.{key}={value!r}: takes letters")
    assert "\n" not in str(error.value)


def test_ddp_is_one_torchrun_on_each_node() -> None:
    command = slurm.torchrun_step(spec(), site())
    assert (command.env, command.cwd) == (spec().env, "/home/x y")
    start = 'exec "$0" -m torch.distributed.run --node-rank="$SLURM_NODEID" --local-addr="$SLURMD_NODENAME" "$@"'
    assert list(command.argv) == [
        *step(1, 64),
        "--mpi=none",
        *("sh", "-c", start, "py"),
        "--nnodes=2",
        "--rdzv-backend=static",
        f"--rdzv-endpoint=n1:{20000 + 0xFF}",
        "--rdzv-id=000000ff00",
        "--nproc-per-node=8",
        "--max-restarts=0",
        "--monitor-interval=0.5",
        "--no-python",
        *RANK,
    ]


def test_one_process_by_itself() -> None:
    alone = spec(nodes=1, ranks_per_node=1)
    words = slurm.direct_step(alone, site()).argv
    assert words[:4] == ("srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1")
    assert "--nodelist=n1" in words
    assert list(words[-5:]) == ["--mpi=none", *RANK]


def test_mpi_ranks_are_sruns_own_tasks() -> None:
    command = slurm.mpi_step(spec(), site(gres="gpu:8"), "openmpi5")
    assert command.env == {"OMPI_MCA_mpi_yield_when_idle": "0", **spec().env}
    assert list(command.argv) == [*step(8, 8, "--gres=gpu:8", "--gpu-bind=none"), "--mpi=pmix", *RANK]
    assert "--mpi=pmi2" in slurm.mpi_step(spec(), site(), "mpich").argv


def test_every_launcher_gets_as_many_cores() -> None:
    nodes = site(cpus=36)
    assert "--cpus-per-task=32" in slurm.torchrun_step(spec(), nodes).argv
    assert "--cpus-per-task=4" in slurm.mpi_step(spec(), nodes, "openmpi5").argv
    assert "--cpus-per-task=4" in slurm.torchrun_step(spec(), site(cpus=4)).argv, "never more than there are"


def test_a_step_has_a_core_for_each_task_at_least() -> None:
    assert "--cpus-per-task=1" in slurm.mpi_step(spec(), site(cpus=4), "openmpi5").argv


def test_horovod_over_gloo_has_its_rendezvous_around_srun() -> None:
    command = slurm.horovod_gloo_step(spec(), site())
    words = list(command.argv)
    assert words[:7] == [sys.executable, "-S", "-I", str(slurm.RENDEZVOUS), "n0", "2", "8"]
    assert words[7:-7] == [*step(8, 8), "--mpi=none"]
    assert words[-7:-5] == ["sh", "-c"]
    assert 'HOROVOD_RANK="$SLURM_PROCID"' in words[-5]
    assert words[-4:] == RANK
    sizes = {"HOROVOD_SIZE": "16", "HOROVOD_LOCAL_SIZE": "8", "HOROVOD_CROSS_SIZE": "2"}
    assert command.env == {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", **sizes, **spec().env}


def test_mpirun_starts_its_daemons_as_steps() -> None:
    command = slurm.mpirun(spec(), site(nic="ib0"), Mpi("/m/mpirun", "openmpi5", "5.0.11"))
    assert list(command.argv) == [
        *("/m/mpirun", "-np", "16", "--host", "n1:8,n2:8", "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"),
        *("--prtemca", "plm", "slurm", "--prtemca", "plm_slurm_args", "--overlap --mem=0"),
        *("--prtemca", "prte_if_include", "ib0", "--mca", "btl_tcp_if_include", "ib0"),
        *("--mca", "mpi_yield_when_idle", "0"),
        *(word for name in sorted(command.env) for word in ("-x", name)),
        *RANK,
    ]
    command = slurm.mpirun(spec(), site(), Mpi("/m/mpirun", "mpich", "4.2"))
    assert command.env["HYDRA_LAUNCHER_EXTRA_ARGS"] == "--overlap --mem=0"
    assert "-rmk user -launcher slurm -hosts n1:8,n2:8" in " ".join(command.argv)


def test_the_device_is_named_to_every_library_and_the_users_own_wins() -> None:
    command = slurm.torchrun_step(spec(env={"NCCL_SOCKET_IFNAME": "mine"}), site(nic="ib0"))
    assert command.env == {**dict.fromkeys(slurm.NIC, "ib0"), "NCCL_SOCKET_IFNAME": "mine"}


@pytest.mark.parametrize("make", [slurm.torchrun_step, slurm.horovod_gloo_step])
def test_containers(make: Callable[[LaunchSpec, SlurmNodes], Command]) -> None:
    image = "nvcr.io#nvidia/pytorch:24.07"
    words = make(spec(), site(container=image, container_mounts=["/a b:/c", "/d:/d"])).argv
    at = words.index(f"--container-image={image}")
    assert words[at + 1 : at + 3] == ("--container-mounts=/a b:/c,/d:/d", "--container-workdir=/home/x y")
    apptainer = {"container_runtime": "apptainer", "container": "/my images/x.sif", "container_mounts": ["/a b:/c"]}
    words = make(spec(), site(gres="gpu:8", **apptainer)).argv
    at = words.index("apptainer")
    assert words[at : at + 7] == ("apptainer", "exec", "--nv", "--bind", "/a b:/c", "/my images/x.sif", "sh")


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        (None, 0),
        ("fpga:1", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:a100", 1),
        ("gpu:a100:4,fpga:2", 4),
        ("craynetwork:1,gpu:a:2,gpu:b:2", 4),
        ("mygpu:3", 0),
    ],
)
def test_gpus_of_a_node(gres: str | None, count: int) -> None:
    assert slurm.gpus(gres) == count


def test_each_node_is_asked_once_and_its_lines_are_its_own() -> None:
    words = slurm.each_node(("py", "-c", "x"), site(HOSTS[:2]))
    assert list(words) == [*step(1, 64), "--mpi=none", "--label", "py", "-c", "x"]
    assert "--mpi=pmix" in slurm.each_node(("true",), site(), "pmix")
    text = " 0: a\n10: b: c\nsrun: job step\n 0:  d\n 1: \n"
    assert slurm.by_node(text) == {0: ["a", " d"], 10: ["b: c"], 1: [""]}


def test_slurm_without_pmix() -> None:
    slurm.check_pmix(0, "")
    said = "srun: error:  mpi/pmix_v4: init: can not load PMIx library\nsrun: error: Invalid MPI type 'pmix'\n"
    with pytest.raises(UserError) as error:
        slurm.check_pmix(1, said)
    assert str(error.value).startswith(
        "cluster.launcher=srun: Slurm has no pmix that works (srun: error:  mpi/pmix_v4: init: can not load PMIx "
        "library); install its library (Debian: libpmix2, "
    )
    assert str(error.value).endswith(", or take cluster.launcher=mpirun")
    assert "\n" not in str(error.value)


def test_unknown_partition() -> None:
    slurm.check_partition(SlurmSpec(), "")
    slurm.check_partition(SlurmSpec(partition="gpu,debug"), "debug\ngpu\ngpu\n")
    with pytest.raises(UserError, match=r"^cluster.slurm.partition=gpus: unknown; choices: debug, gpu$"):
        slurm.check_partition(SlurmSpec(partition="debug,gpus"), "debug\ngpu\n")


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for srun that starts the tasks of all nodes here, with the variables that Slurm sets."""
    (tmp_path / "srun").write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess, sys\n"
        "words = sys.argv[1:]\n"
        "options = [words.pop(0) for _ in range(next(k for k, w in enumerate(words) if not w.startswith('--')))]\n"
        "def number(name): return int(next(o for o in options if o.startswith(name + '=')).split('=')[1])\n"
        "n, nodes = number('--ntasks-per-node'), number('--nodes')\n"
        "def start(k):\n"
        "    env = dict(SLURM_PROCID=k, SLURM_LOCALID=k % n, SLURM_NODEID=k // n, SLURMD_NODENAME=f'n{k // n}')\n"
        "    return subprocess.Popen(words, env={**os.environ, **{a: str(b) for a, b in env.items()}})\n"
        "codes = [task.wait() for task in [start(k) for k in range(nodes * n)]]\n"
        "sys.exit(max(codes))\n"
    )
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def local() -> SlurmNodes:
    return SlurmNodes(("localhost",), 2, TOKEN, "localhost", SlurmSpec())


def run(command: Command) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command.text()], capture_output=True, text=True, timeout=120)


def test_words_of_a_step_arrive_unchanged(srun: Path, tmp_path: Path) -> None:
    # In one piece: with PYTHONUNBUFFERED print() writes the end of the line apart, and ranks' lines could mix.
    text = "import json,os,sys; sys.stdout.write(json.dumps([os.environ['HOROVOD_RANK'], sys.argv[1:]]) + '\\n')"
    show = ("-c", text, *HOSTILE)
    wanted = spec(python=sys.executable, args=show, nodes=1, ranks_per_node=2, cwd=str(tmp_path))
    done = run(slurm.horovod_gloo_step(wanted, local()))
    assert sorted(map(json.loads, done.stdout.splitlines())) == [["0", list(HOSTILE)], ["1", list(HOSTILE)]]


def test_a_name_that_resolves_to_loopback_is_told() -> None:
    words = (sys.executable, "-S", "-I", str(slurm.RENDEZVOUS), "localhost", "2", "1", "true")
    done = run(Command(words))
    assert done.returncode == 2
    assert done.stderr.startswith("localhost: resolves to 127.0.0.1, at which no other node reaches it")


@pytest.mark.parametrize(("line", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)])
def test_the_rendezvous_ends_as_its_command_does(line: str, status: int) -> None:
    words = (sys.executable, "-S", "-I", str(slurm.RENDEZVOUS), "localhost", "1", "1", "sh", "-c", line)
    assert run(Command(words)).returncode == status


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(nodes=2, ranks_per_node=1) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_scope_is_emptied_when_all_its_ranks_are_done(store: Store) -> None:
    def ask(method: str, path: str, value: bytes | None = None) -> bytes | int:
        url = f"http://127.0.0.1:{store.server_address[1]}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, value, method=method), timeout=10) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            return error.code

    assert ask("GET", "/global/0_1") == 404
    assert ask("PUT", "/global/0_1", b"\0binary") == b""
    assert ask("PUT", "/local_n1/x", b"y") == b""
    assert ask("GET", "/global/0_1") == b"\0binary"
    ask("DELETE", "/global/0")
    assert ask("GET", "/global/0_1") == b"\0binary"
    ask("DELETE", "/global/1")
    assert ask("GET", "/global/0_1") == 404
    ask("DELETE", "/local_n1/0")
    assert ask("GET", "/local_n1/x") == 404


@pytest.mark.horovod
def test_horovod_starts_twice_over_our_rendezvous(srun: Path, tmp_path: Path) -> None:
    if not Tools().packages(sys.executable).horovod:
        pytest.skip("no Horovod here")
    (tmp_path / "rank.py").write_text(
        "import sys, torch, horovod.torch as hvd\n"
        "for _ in range(2):\n"
        "    hvd.init()\n"
        "    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()\n"
        # In one piece: both ranks write to one pipe.
        "    sys.stdout.write(f'sum {total}\\n')\n"
        "    sys.stdout.flush()\n"
        "    hvd.shutdown()\n"
    )
    env = {"HOROVOD_GLOO_IFACE": "lo", "OMP_NUM_THREADS": "1"}
    args = (str(tmp_path / "rank.py"),)
    wanted = spec(python=sys.executable, args=args, nodes=1, ranks_per_node=2, cwd="/", env=env)
    done = run(slurm.horovod_gloo_step(wanted, local()))
    assert done.stdout.split() == ["sum", "3.0"] * 4, done.stderr
