"""Plans of virtual clusters: names, addresses, commands line by line, and the program that stands in for ssh."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches.errors import UserError
from launchers.virtual.plan import (
    SUBNETS,
    Link,
    Plan,
    hosts_text,
    make_plan,
    prefix_of,
    script,
    ssh_text,
    up_commands,
)

HOSTILE = ("a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "~", "é", "#y")

owners = st.tuples(st.text(max_size=20), st.integers(1, 1 << 22), st.integers(1, 1 << 40))


def lines(plan: Plan) -> list[str]:
    return [" ".join(words) for words in up_commands(plan)]


@given(owners, st.integers(0, len(SUBNETS) - 1), st.integers(1, 250))
def test_nodes_are_told_apart(owner: tuple[str, int, int], subnet: int, nodes: int) -> None:
    plan = make_plan(prefix_of(*owner), subnet, nodes, Link())
    names = {plan.switch, *(node.name for node in plan.nodes)}
    addresses = {IPv4Address(plan.driver), *(IPv4Address(node.address) for node in plan.nodes)}
    assert len(names) == len(addresses) == nodes + 1
    assert all(address in plan.network for address in addresses)
    assert not addresses & {plan.network.network_address, plan.network.broadcast_address}
    assert all(name.startswith(plan.prefix + "-") for name in names)
    assert len(plan.prefix.encode()) <= 15


@given(st.lists(st.tuples(owners, st.integers(0, len(SUBNETS) - 1)), min_size=2, max_size=2, unique_by=lambda o: o[1]))
def test_two_clusters_share_no_name_and_no_address(both: list[tuple[tuple[str, int, int], int]]) -> None:
    (one, first), (other, second) = both
    plans = (
        make_plan(prefix_of(f"{one[0]}\0{first}", *one[1:]), first, 3, Link()),
        make_plan(prefix_of(f"{other[0]}\0{second}", *other[1:]), second, 3, Link()),
    )
    seen = [{p.prefix, p.switch, p.driver, *(n.name for n in p.nodes), *(n.address for n in p.nodes)} for p in plans]
    assert not seen[0] & seen[1]


def test_commands_line_by_line() -> None:
    plan = make_plan("rd0", 1, 2, Link(gbps=1), {1: Link(gbps=0.25, latency_ms=2)})
    off = "file=/proc/sys/net/ipv6/conf/all/disable_ipv6; [ ! -e $file ] || echo 1 >$file"
    assert lines(plan) == [
        "ip netns add rd0-sw",
        f"ip netns exec rd0-sw sh -c {off}",
        "ip -n rd0-sw link add br0 type bridge",
        "ip -n rd0-sw link set br0 up",
        "ip link add rd0 type veth peer name driver netns rd0-sw",
        "ip -n rd0-sw link set driver master br0 up",
        "ip address add 198.18.1.254/24 dev rd0",
        "ip link set rd0 up",
        "ip netns add rd0-n0",
        f"ip netns exec rd0-n0 sh -c {off}",
        "ip link add eth0 netns rd0-n0 type veth peer name n0 netns rd0-sw",
        "ip -n rd0-n0 address add 198.18.1.1/24 dev eth0",
        "tc -n rd0-n0 qdisc add dev eth0 root handle 10: tbf rate 1000000000bit burst 131072b latency 50ms",
        "tc -n rd0-sw qdisc add dev n0 root handle 10: tbf rate 1000000000bit burst 131072b latency 50ms",
        "ip -n rd0-n0 link set lo up",
        "ip -n rd0-n0 link set eth0 up",
        "ip -n rd0-sw link set n0 master br0 up",
        "ip netns add rd0-n1",
        f"ip netns exec rd0-n1 sh -c {off}",
        "ip link add eth0 netns rd0-n1 type veth peer name n1 netns rd0-sw",
        "ip -n rd0-n1 address add 198.18.1.2/24 dev eth0",
        "tc -n rd0-n1 qdisc add dev eth0 root handle 1: netem delay 2ms limit 100000",
        "tc -n rd0-n1 qdisc add dev eth0 parent 1:1 handle 10: tbf rate 250000000bit burst 131072b latency 50ms",
        "tc -n rd0-sw qdisc add dev n1 root handle 10: tbf rate 250000000bit burst 131072b latency 50ms",
        "ip -n rd0-n1 link set lo up",
        "ip -n rd0-n1 link set eth0 up",
        "ip -n rd0-sw link set n1 master br0 up",
    ]
    assert hosts_text(plan).splitlines()[1:] == ["198.18.1.254 driver", "198.18.1.1 rd0-n0", "198.18.1.2 rd0-n1"]


def test_a_link_as_it_is_has_no_queue_and_a_fast_one_a_larger_bucket() -> None:
    assert not [line for line in lines(make_plan("rd0", 0, 3, Link())) if line.startswith("tc")]
    shaped = [line for line in lines(make_plan("rd0", 0, 1, Link(gbps=10))) if line.startswith("tc")]
    assert len(shaped) == 2
    assert all("rate 10000000000bit burst 312500b" in line for line in shaped)


@pytest.mark.parametrize(
    ("nodes", "link", "slow", "said"),
    [
        (0, Link(), {}, "cluster.nodes=0: "),
        (251, Link(), {}, "cluster.nodes=251: "),
        (2, Link(gbps=0), {}, "cluster.link_gbps=0: "),
        (2, Link(gbps=-1), {}, "cluster.link_gbps=-1: "),
        (2, Link(gbps=float("nan")), {}, "cluster.link_gbps=nan: "),
        (2, Link(latency_ms=0), {}, "cluster.link_latency_ms=0: "),
        (2, Link(), {2: Link(gbps=1)}, "cluster.slow_node=2: no such node; choices: 0 to 1"),
        (2, Link(), {1: Link(gbps=0)}, "cluster.link_gbps=0: "),
    ],
)
def test_a_mistake_is_one_line(nodes: int, link: Link, slow: dict[int, Link], said: str) -> None:
    with pytest.raises(UserError) as error:
        make_plan("rd0", 0, nodes, link, slow)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_the_script_stops_at_the_first_failure(tmp_path: Path) -> None:
    text = script([("touch", str(tmp_path / "a b")), ("sh", "-c", "exit 3"), ("touch", str(tmp_path / "c"))])
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a b"]
    assert done.stderr.strip().splitlines()[-1] == "+ sh -c exit 3"


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """Our ssh, for a cluster of 2 whose `enter` shows the words that it gets and runs them here."""
    enter = tmp_path / "it's my enter"
    enter.write_text('#!/bin/sh\nnode=$1; shift; echo "$node"; exec "$@"\n')
    program = tmp_path / "ssh"
    program.write_text(ssh_text(make_plan("rd0", 0, 2, Link()), str(enter)))
    for path in (enter, program):
        path.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "words",
    [
        ["198.18.0.2"],
        ["rd0-n1"],
        ["root@rd0-n1"],
        ["-x", "-o", "BatchMode=yes", "198.18.0.2"],
        ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", "rd0-n1", "-p", "22", "-i", "key"],
        ["-p2222", "-tt", "--", "rd0-n1"],
    ],
    ids=" ".join,
)
def test_our_ssh_takes_the_words_of_mpirun_and_horovodrun(ssh: Path, words: list[str]) -> None:
    done = subprocess.run([ssh, *words, "echo", "a  b;", "echo c"], capture_output=True, text=True, timeout=30)
    assert done.stdout == "rd0-n1\na b\nc\n"


def test_our_ssh_changes_nothing_in_quoted_words(ssh: Path) -> None:
    show = [sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))", *HOSTILE]
    done = subprocess.run([ssh, "rd0-n0", shlex.join(show)], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout.split("\n", 1)[1]) == list(HOSTILE)


def test_our_ssh_hands_back_the_status_and_knows_its_nodes_only(ssh: Path) -> None:
    assert subprocess.run([ssh, "rd0-n0", "exit 7"], stdout=subprocess.DEVNULL, timeout=30).returncode == 7
    other = subprocess.run([ssh, "example.org", "true"], capture_output=True, text=True, timeout=30)
    assert (other.returncode, other.stderr) == (255, "ssh: example.org: no node of this virtual cluster\n")
