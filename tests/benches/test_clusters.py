"""What a study runs on: which virtual clusters it needs, when they come up and go, and what hosts are asked first."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from composing import resolved, study
from msgspec.structs import replace

from benches import clusters
from benches.clusters import Place, Shape, Site, planned, shapes
from benches.control import LOOPBACK
from benches.errors import UserError
from benches.folder import StudyFolder
from benches.plan import plan
from benches.spec import Case, Study
from launchers.hostcheck import Answer
from launchers.nodes import port
from launchers.remote import Ssh, SshNodes
from launchers.spec import Mpi
from launchers.tools import Packages, Tools
from launchers.virtual.cluster import Cluster
from launchers.virtual.nodes import VirtualNodes
from launchers.virtual.plan import Link, make_plan
from launchers.virtual.rate import Carried

EMULATED = ("engine=ddp", "model=emulated")
VIRTUAL = (*EMULATED, "cluster=virtual")
AXES = (*VIRTUAL, "study.axes.cluster.link_gbps=[1,10]", "study.axes.cluster.nodes=[1,4,2]")
NAMES = {"a": "here", "b": "there", "c": "elsewhere"}
"""What hosts call themselves."""
HOSTS = (*EMULATED, "cluster=hosts", "cluster.hosts=[a:2,b:2]")


def cases(found: Study) -> list[Case]:
    return [one.case for one in found.contestants]


class Virtual:
    """Stands for namespaces: notes what comes up and goes, and carries no more than 4 Gb/s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        monkeypatch.setattr(clusters, "virtual_cluster", self.cluster)
        monkeypatch.setattr(clusters.rate, "measure", self.measure)

    @contextlib.contextmanager
    def cluster(self, name: str, nodes: int, link: Link, slow: Mapping[int, Link] | None = None) -> Iterator[Cluster]:
        self.did.append(f"{nodes} nodes at {link.gbps:g} up")
        yield Cluster(make_plan(f"rd{link.gbps:g}", 7, nodes, link, slow), Path("/run/ringduel/rd7"))
        self.did.append(f"{link.gbps:g} down")

    def measure(self, cluster: Cluster) -> Carried | None:
        nodes = cluster.plan.nodes
        self.did.append(f"{len(nodes)} at {nodes[0].link.gbps:g} tried")
        if len(nodes) == 1:
            return None
        asked = [node.link.gbps or 0.0 for node in nodes]
        return Carried(tuple(min(rate, 4.0) for rate in asked), tuple(asked))


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Virtual:
    return Virtual(monkeypatch)


def test_cases_of_one_kind_of_link_share_a_cluster_of_the_largest_size() -> None:
    found = shapes(study(*AXES))
    assert found == {Shape(1.0, None, ()): 4, Shape(10.0, None, ()): 4}
    slow = shapes(study(*VIRTUAL, "cluster.slow_node={1: 0.1}", "cluster.link_latency_ms=2"))
    (shape,) = slow
    assert shape.others == {1: Link(0.1, 2.0)}
    assert shape.link == Link(1.0, 2.0)


def test_clusters_come_up_once_when_needed_and_all_go_at_the_end(virtual: Virtual) -> None:
    told: list[str] = []
    found = study(*AXES)
    site = Site(found, told.append)
    assert virtual.did == []
    places = [site.place(case) for case in cases(found) * 2]
    site.close()
    assert virtual.did == [
        *("4 nodes at 1 up", "1 at 1 tried", "4 at 1 tried", "2 at 1 tried"),
        *("4 nodes at 10 up", "1 at 10 tried", *["4 at 10 tried"] * 2, *["2 at 10 tried"] * 2),
        *("10 down", "1 down"),
    ]
    assert len({place.token for place in places}) == 12
    assert [len(place.nodes.hosts) for place in places[:3] if place.nodes] == [1, 4, 2]
    assert {place.host for place in places} == {"198.18.7.254"}
    assert [place.names for place in places[:3]] == [tuple(f"rd1-n{k}" for k in range(count)) for count in (1, 4, 2)]
    assert [line.partition(";")[0] for line in told] == [
        f"cluster.link_gbps=10: this machine carries 4 Gb/s where {nodes} nodes send at once" for nodes in (4, 2)
    ]


def test_records_say_what_the_links_carried(virtual: Virtual) -> None:
    found = study(*VIRTUAL, "cluster.slow_node={1: 0.5}", "study.axes.cluster.nodes=[1,2]")
    site = Site(found, lambda _: None)
    alone, pair = (site.place(case).facts for case in cases(found))
    assert alone == {
        "kind": "virtual",
        "link_gbps": [1.0],
        "latency_ms": [None],
        "carried_gbps": None,
        "short": [],
    }
    assert (pair["link_gbps"], pair["carried_gbps"], pair["short"]) == ([1.0, 0.5], [1.0, 0.5], [])


def test_links_are_tried_again_where_no_answer_comes(virtual: Virtual, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def measure(cluster: Cluster) -> Carried | None:
        tries.append(cluster)
        if len(tries) < 2:
            raise UserError("cluster=virtual: its links could not be tried: no answer")
        return virtual.measure(cluster)

    monkeypatch.setattr(clusters.rate, "measure", measure)
    found = study(*VIRTUAL)
    assert Site(found, lambda _: None).place(cases(found)[0]).facts["carried_gbps"] == [1.0, 1.0]


def test_of_two_tries_of_links_that_fall_short_the_better_counts(
    virtual: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([0.5, 0.7, 0.6, 0.4])
    monkeypatch.setattr(clusters.rate, "measure", lambda _: Carried((rate := next(rates), 1.0), (1.0, rate)))
    found = study(*VIRTUAL)
    for better in (0.7, 0.6):
        facts = Site(found, lambda _: None).place(cases(found)[0]).facts
        assert (facts["carried_gbps"], facts["short"]) == ([better, 1.0], [0])


def test_virtual_nodes_share_the_cores_of_this_machine() -> None:
    words = (*EMULATED, "cluster.nodes=4", "cluster.ranks_per_node=2", "transport=mpi")
    found = resolved(*words, "cluster=virtual", cores=15)
    (case,) = cases(found.study)
    assert (case.cluster.ranks_on_a_machine, case.cluster.mpi_yield_when_idle) == (8, True)
    crowded = "no spare core for communication: 8 rank(s) on 15 core(s), fewer than two a rank"
    assert any(warning.startswith(crowded) for warning in found.warnings)
    (case,) = cases(study(*words, "cluster=hosts", "cluster.hosts=[a:2,b:2,c:2,d:2]", cores=15))
    assert (case.cluster.ranks_on_a_machine, case.cluster.mpi_yield_when_idle) == (2, False)


def test_this_machine_needs_nothing(virtual: Virtual) -> None:
    found = study("engine=ddp", "model=mlp")
    place = Site(found, lambda _: None).place(cases(found)[0])
    assert (place.host, place.nodes, place.facts) == (LOOPBACK, None, {})
    assert virtual.did == []


def test_a_plan_starts_nothing_and_is_the_same_each_time(virtual: Virtual) -> None:
    found = study(*AXES)
    places = [planned(found, case) for case in cases(found)]
    assert virtual.did == []
    assert places == [planned(found, case) for case in cases(found)]
    hosts = [place.nodes.hosts for place in places if place.nodes]
    assert [len(one) for one in hosts] == [1, 4, 2] * 2
    assert hosts[1][:2] == hosts[2], "nodes of one kind of link are those of one cluster"
    assert not set(hosts[1]) & set(hosts[4]), "those of another are of another"


def test_a_node_that_no_case_has_is_refused(virtual: Virtual, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cluster\.slow_node=2: no such node; choices: 0 to 1$"):
        clusters.check(study(*VIRTUAL, "cluster.slow_node={2: 0.1}"), tmp_path)
    clusters.check(study(*AXES), tmp_path)
    assert virtual.did == ["1 nodes at 1 up", "1 down", "1 nodes at 10 up", "10 down"]


def answer(name: str, **changes: Any) -> Answer:
    addresses = {one: f"10.0.0.{number}" for number, names in enumerate(NAMES.items()) for one in names}
    content = {"offset_s": 0.0, "free_gib": 9.0, "versions": {}, "code": "c", "nics": ("ib0",), "addresses": addresses}
    return Answer(name=name, **{**content, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Hosts and interpreters that were asked."""
    seen: list[tuple[str, str]] = []

    def ask(host: str, python: str, hosts: tuple[str, ...], ssh: Ssh) -> Answer:
        seen.append((host, python))
        return answer(NAMES[host], offset_s=3.0 if host == "b" else 0.0)

    monkeypatch.setattr(clusters.hostcheck, "ask", ask)
    monkeypatch.setattr(clusters, "address_towards", lambda hosts: "10.0.0.9")
    return seen


def test_hosts_are_asked_once_and_told(asked: list[tuple[str, str]]) -> None:
    found = study(*HOSTS, "python=/env/python", "cluster.nic=ib0", "cluster.identity_file=/k", cores=4)
    told: list[str] = []
    site = Site(found, told.append)
    first, second = site.place(cases(found)[0]), site.place(cases(found)[0])
    assert asked == [("a", "/env/python"), ("b", "/env/python")]
    assert told == ["b: its clock is +3.0 s from ours"]
    assert isinstance(first.nodes, SshNodes)
    assert first.token == first.nodes.token != second.token
    assert (first.nodes.hosts, first.nodes.nic, first.host) == (("a", "b"), "ib0", "10.0.0.9")
    assert first.nodes.ssh == Ssh(identity_file="/k")
    assert first.names == ("here", "there")
    assert first.facts["hosts"][1] == {"host": "b", "name": "there", "offset_s": 3.0, "free_gib": 9.0}


def test_nodes_and_ranks_go_by_the_hosts() -> None:
    (case,) = cases(study(*HOSTS, cores=4))
    assert (case.cluster.nodes, case.cluster.ranks_per_node) == (2, 2)
    (case,) = cases(study(*HOSTS, "cluster.nodes=1", "cluster.hosts=[a:3,b:2]", cores=4))
    assert (case.cluster.nodes, case.cluster.ranks_per_node) == (1, 3)
    (case,) = cases(study(*HOSTS, "device=cuda", gpus=1, cores=4))
    assert (case.cluster.nodes, case.cluster.ranks_per_node) == (2, 1)


def test_a_host_that_does_not_see_the_results_is_refused(
    asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study(*HOSTS, cores=4)
    looked: list[str] = []

    def output(words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        path = Path(shlex.split(shlex.split(words[-1])[-1])[-1])
        looked.append(words[-2])
        assert path.exists()
        assert path.parent == tmp_path
        return (int(words[-2] == "b"), "")

    monkeypatch.setattr(clusters, "output", output)
    with pytest.raises(UserError, match=r"^results=.*/not/yet: b does not see .*; take a folder that all hosts share$"):
        clusters.check(found, tmp_path / "not" / "yet")
    assert looked == ["a", "b"]
    assert list(tmp_path.iterdir()) == []


def test_each_list_of_hosts_is_asked_once(
    asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "output", lambda *_, **__: (0, ""))
    found = study(*HOSTS, "python=py", cores=4)
    (one,) = found.contestants
    contestants = []
    for hosts in (("a:2",), ("a:2", "b:2"), ("b:2",), ("b:2", "c:2")):
        cluster = replace(one.case.cluster, hosts=hosts, nodes=len(hosts))
        contestants.append(replace(one, case=replace(one.case, cluster=cluster)))
    clusters.check(replace(found, contestants=tuple(contestants)), tmp_path)
    assert asked == [(host, "py") for host in "abbc"]


def test_our_address_is_that_of_the_way_to_another_machine() -> None:
    assert clusters.address_towards(("127.0.0.1",)) == LOOPBACK
    with pytest.raises(UserError, match=r"^cluster\.hosts=nowhere\.invalid: there is no way to it from here: "):
        clusters.address_towards(("nowhere.invalid",))


def test_addresses_of_this_machine_alone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe:
        def __init__(self, *_: object) -> None:
            self.host = ""

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def connect(self, target: tuple[str, int]) -> None:
            self.host = target[0]

        def getsockname(self) -> tuple[str, int]:
            return {"a": "127.0.0.1", "b": "10.0.0.9"}[self.host], 1

    monkeypatch.setattr(socket, "socket", Probe)
    assert clusters.address_towards(("a", "b")) == "10.0.0.9"


def test_a_place_by_hand_is_this_machine() -> None:
    one, other = Place(), Place()
    assert one.token != other.token
    assert int(one.token, 16) >= 0
    assert isinstance(planned(study(*VIRTUAL), cases(study(*VIRTUAL))[0]).nodes, VirtualNodes)


class Present(Tools):
    """An environment that holds everything."""

    def packages(self, python: str) -> Packages:
        return Packages(torch=True, horovod=True, mpi4py=True, libraries=())

    def horovodrun(self, python: str) -> tuple[str, ...]:
        return ("/env/bin/horovodrun",)

    def mpi(self, python: str) -> Mpi:
        return Mpi("/env/bin/mpirun", "openmpi5", "5.0.11")


def test_a_plan_prints_the_commands_on_the_nodes(virtual: Virtual, tmp_path: Path) -> None:
    found = study(*VIRTUAL[1:], "study.contestants.mpi={engine: horovod, transport: mpi}")
    lines = list(plan(found, StudyFolder(tmp_path, found), Present()))
    assert [line.launcher for line in lines] == ["torchrun", "horovodrun", "mpirun"]
    torchrun, horovodrun, mpirun = (line.command.argv for line in lines)
    place = planned(found, cases(found)[0])
    assert isinstance(place.nodes, VirtualNodes)
    enter, names = place.nodes.cluster.enter, [node.name for node in place.nodes.cluster.plan.nodes]
    assert [shlex.split(word)[:2] for word in torchrun[4:]] == [[enter, name] for name in names]
    for argv in (horovodrun, mpirun):
        assert argv[:2] == (enter, names[0])
        assert "198.18.0.1:1,198.18.0.2:1" in argv
    assert virtual.did == []


def test_a_plan_says_what_is_decided_only_at_the_start(virtual: Virtual, tmp_path: Path) -> None:
    found = study(*VIRTUAL[1:], "study.contestants.mpi={engine: horovod, transport: mpi}")
    torchrun, _, mpirun = plan(found, StudyFolder(tmp_path, found), Present())
    assert list(mpirun.stand_ins) == ["CLUSTER0", "198.18.0."]
    assert [word.partition("=")[0] for word in list(torchrun.stand_ins)[2:]] == [
        f":{port(torchrun.turn.case.id)}",
        "--rdzv-id",
    ]
    for line in (torchrun, mpirun):
        text = line.command.text()
        assert all(word in text for word in line.stand_ins)
        # Whatever else is said of the nodes is theirs too: no name or address is left that a run would not have.
        for word in line.stand_ins:
            text = text.replace(word, "")
        assert "198.18" not in text
    alone = study("engine=ddp", "model=mlp")
    (line,) = plan(alone, StudyFolder(tmp_path, alone), Present())
    assert line.stand_ins == {}
