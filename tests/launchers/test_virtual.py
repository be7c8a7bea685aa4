"""Virtual clusters for real: namespaces, links, teardown. Needs root."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benches.errors import UserError
from launchers import nodes, supervise
from launchers.nodes import fanout
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT
from launchers.tools import Tools
from launchers.virtual import cluster as virtual
from launchers.virtual.cluster import Cluster, clean, virtual_cluster
from launchers.virtual.nodes import VirtualNodes
from launchers.virtual.plan import Link, make_plan
from launchers.virtual.rate import Carried, asked, measure

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
HOLD = (
    "import sys, time\n"
    "from launchers.virtual.cluster import virtual_cluster\n"
    "from launchers.virtual.plan import Link\n"
    "with virtual_cluster('held', 2, Link(1)) as cluster:\n"
    "    print(cluster.plan.prefix, flush=True)\n"
    "    time.sleep(60)\n"
)


def names() -> list[str]:
    """All that clusters of ours consist of, outside their own namespaces."""
    listed = [["ip", "netns", "list"], ["ip", "-brief", "link"]]
    texts = [subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout for words in listed]
    words = [line.split()[0].split("@")[0] for text in texts for line in text.splitlines()]
    return sorted([word for word in words if word.startswith("rd")] + [path.name for path in virtual._folders()])


@pytest.fixture
def held() -> Iterator[subprocess.Popen[str]]:
    """Another process with a cluster of two nodes; its `args` are replaced by the prefix."""
    words = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert process.stdout is not None
    process.args = process.stdout.readline().strip()
    assert process.args
    yield process
    process.kill()
    process.wait(30)
    clean()


def entered(cluster: Cluster, node: int, *words: str) -> str:
    command = [cluster.enter, cluster.plan.nodes[node].name, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@root
def test_nodes_have_names_addresses_and_see_each_other() -> None:
    ask = "import socket; name = socket.gethostname(); print(name, socket.gethostbyname(name))"
    with virtual_cluster("study", 2, Link()) as cluster:
        for number, node in enumerate(cluster.plan.nodes):
            assert entered(cluster, number, sys.executable, "-c", ask).split() == [node.name, node.address]
            assert "inet6" not in entered(cluster, number, "ip", "address")
        assert os.uname().nodename != cluster.plan.nodes[0].name
        # The driver's own machine listens for the nodes' agents.
        connect = f"import socket; socket.create_connection(('{cluster.plan.driver}', 1), 5)"
        refused = subprocess.run(
            [cluster.enter, cluster.plan.nodes[1].name, sys.executable, "-c", connect],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert "ConnectionRefusedError" in refused.stderr
        other = subprocess.run([cluster.enter, "elsewhere", "true"], capture_output=True, text=True, timeout=30)
        assert (other.returncode, other.stderr) == (255, "enter: elsewhere: no node of this virtual cluster\n")
    assert cluster.plan.prefix not in " ".join(names())


@root
def test_links_carry_what_they_are_shaped_to_and_no_more() -> None:
    with virtual_cluster("study", 3, Link(gbps=0.4), {1: Link(gbps=0.1)}) as cluster:
        carried = measure(cluster, seconds=1.5)
    assert carried is not None
    assert carried.link_gbps == (0.4, 0.1, 0.1)
    for got, want in zip(carried.gbps, (0.4, 0.1, 0.1), strict=True):
        # A busy host may send less; more than asked would be a link that leaks.
        assert 0.6 * want < got < want


def test_a_stream_is_as_fast_as_the_slower_of_its_two_links() -> None:
    def rates(link: Link, slow: dict[int, Link]) -> tuple[float | None, ...]:
        return asked(Cluster(make_plan("rd0", 0, 3, link, slow), Path("/nowhere")))

    assert rates(Link(gbps=10), {1: Link(gbps=1)}) == (10, 1, 1)
    assert rates(Link(), {0: Link(gbps=1)}) == (1, 1, None)


def test_a_host_that_cannot_carry_the_rate_is_told() -> None:
    assert Carried((0.95, 0.80, 3.0), (1.0, 1.0, None)).short == (1,)


@root
def test_nothing_is_left_after_an_error_or_an_interrupt() -> None:
    before = names()
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            _fail_within(error)
    assert names() == before


def _fail_within(error: type[BaseException]) -> None:
    with virtual_cluster("study", 2, Link(1)) as cluster:
        subprocess.Popen([cluster.enter, cluster.plan.nodes[0].name, "sleep", "60"])
        time.sleep(0.3)
        raise error


@root
def test_two_clusters_at_once(held: subprocess.Popen[str]) -> None:
    with virtual_cluster("held", 2, Link(1)) as cluster:
        assert cluster.plan.prefix != held.args
        assert {cluster.plan.prefix, str(held.args)} <= set(names())
        assert entered(cluster, 0, "uname", "-n").strip() == cluster.plan.nodes[0].name
    assert str(held.args) in names()


@root
def test_a_driver_killed_outright_is_cleaned_up_after_and_it_alone(held: subprocess.Popen[str]) -> None:
    killed = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert killed.stdout is not None
    prefix = killed.stdout.readline().strip()
    lost = subprocess.Popen(["ip", "netns", "exec", f"{prefix}-n1", "sleep", "60"])
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert prefix in names()
    living = [name for name in names() if name.startswith(str(held.args))]
    assert clean() == [prefix]
    assert [name for name in names() if name.startswith(prefix)] == []
    assert [name for name in names() if name.startswith(str(held.args))] == living
    assert lost.wait(10) == -signal.SIGKILL


@root
def test_a_failed_command_is_one_line_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names()
    monkeypatch.setattr(virtual, "up_commands", lambda plan: [("ip", "netns", "add", plan.switch), ("ip", "nonsense")])
    with pytest.raises(UserError) as error, virtual_cluster("study", 2, Link()):
        pass
    assert str(error.value).startswith("cluster=virtual: ip nonsense: ")
    assert "\n" not in str(error.value)
    assert names() == before


def test_a_kernel_without_netem_is_told() -> None:
    said = "+ tc -n rd0-n0 qdisc add dev eth0 root handle 1: netem delay 2ms\nError: Specified qdisc kind is unknown.\n"
    assert virtual._reason(said) == (
        "this kernel has no netem (CONFIG_NET_SCH_NETEM); set cluster.link_latency_ms=null"
    )


def test_without_root_or_tools_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ip", "tc", "unshare"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"^cluster=virtual: needs root, or user namespaces: unshare --user"):
        virtual.check_here()
    (tmp_path / "tc").unlink()
    with pytest.raises(UserError, match=r"^cluster=virtual: no tc on the PATH; install iproute2"):
        virtual.check_here()


def test_in_a_user_namespace_without_root() -> None:
    spaces = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*spaces, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("no user namespaces here")
    hold = HOLD.replace("time.sleep(60)", "print(len(cluster.plan.nodes))")
    ready = "mount -t tmpfs tmpfs /run && exec " + shlex.join([sys.executable, "-c", hold])
    before = names()
    done = subprocess.run([*spaces, "sh", "-c", ready], capture_output=True, text=True, timeout=60, cwd=CHECKOUT)
    assert done.stdout.split()[1:] == ["2"], done.stderr
    assert names() == before


RANK = """
import json, os, socket, sys
rank = next(os.environ[k] for k in ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK") if k in os.environ)
print(json.dumps([int(rank), socket.gethostname(), os.getcwd(), os.environ["HOSTILE"], sys.argv[1:]]), flush=True)
"""
HOSTILE = ("a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "é")


@root
@pytest.mark.parametrize("tool", ["torchrun", "mpirun", "horovodrun"])
def test_each_launcher_starts_ranks_on_the_nodes(tool: str, tmp_path: Path) -> None:
    tools, python = Tools(), sys.executable
    if tool == "horovodrun" and not tools.packages(python).horovod:
        pytest.skip("no Horovod here")
    folder = tmp_path / "it's $(here)"
    folder.mkdir()
    (tmp_path / "rank.py").write_text(RANK)
    env, args = {"HOSTILE": "\n".join(HOSTILE)}, (str(tmp_path / "rank.py"), *HOSTILE)
    spec = LaunchSpec(python, args, 2, 2, str(folder), env, as_root=True)
    with virtual_cluster("study", 2, Link()) as cluster:
        site = VirtualNodes(cluster, 2, "0123456789abcdef")
        command = commands(tool, spec, site, tools)
        outcome = supervise.run(command, log=tmp_path / "log", limit_s=120, token=site.token)
        hosts = [node.name for node in cluster.plan.nodes for _ in range(2)]
    text = (tmp_path / "log").read_text()
    assert outcome.status == "ok", text
    said = [json.loads(line) for line in ranks_of(text)]
    assert sorted(said) == [[k, hosts[k], str(folder), env["HOSTILE"], list(HOSTILE)] for k in range(4)]
    assert list(folder.iterdir()) == []


def ranks_of(text: str) -> list[str]:
    """Lines of ranks; horovodrun writes `[0]<stdout>:` before each."""
    return [line.partition(">:")[2] or line for line in text.splitlines() if line.endswith("]]")]


def commands(tool: str, spec: LaunchSpec, site: VirtualNodes, tools: Tools) -> Command:
    if tool == "torchrun":
        return nodes.torchrun(spec, site)
    if tool == "mpirun":
        return nodes.mpirun(spec, site, tools.mpi(spec.python))
    return nodes.horovodrun(spec, site, tools.horovodrun(spec.python))


def test_fanout_words_come_back() -> None:
    lines = [("enter", "a b", "$(id)"), ("x", "")]
    assert [tuple(shlex.split(word)) for word in fanout(lines)[4:]] == lines
