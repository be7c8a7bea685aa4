"""`hosts=[a:8,b:8]`: what is taken and what is refused, in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches.errors import UserError
from launchers.hosts import Host, parse_hostfile, parse_hosts, place

names = st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,20}", fullmatch=True)


@given(st.lists(st.tuples(names, st.integers(1, 99999)), min_size=1, unique_by=lambda entry: entry[0]))
def test_what_is_written_is_what_is_read(entries: list[tuple[str, int]]) -> None:
    hosts = tuple(Host(name, slots) for name, slots in entries)
    assert parse_hosts([f"{name}:{slots}" for name, slots in entries]) == hosts
    assert parse_hostfile("".join(f"{name} slots={slots}  # x\n\n" for name, slots in entries)) == hosts
    assert parse_hostfile("".join(f"{name}:{slots}\n" for name, slots in entries)) == hosts


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "cluster.hosts=[]: names no host"),
        ([""], "cluster.hosts='': an empty entry"),
        (["a:8", " "], "cluster.hosts='': an empty entry"),
        (["a"], "cluster.hosts='a': says no slots; write a:8"),
        (["a:"], "cluster.hosts='a:': '' is no number of slots"),
        (["a:0"], "cluster.hosts='a:0': '0' is no number of slots; takes 1 or more"),
        (["a:00"], "cluster.hosts='a:00': '00' is no number"),
        (["a:-1"], "cluster.hosts='a:-1': '-1' is no number"),
        (["a:1.5"], "cluster.hosts='a:1.5': '1.5' is no number"),
        (["a:٣"], "cluster.hosts='a:٣': '٣' is no number"),
        (["a:8", "b:8", "A:4"], "cluster.hosts=A: is there twice"),
        (["fe80::1"], "cluster.hosts='fe80::1': horovodrun takes no IPv6 address"),
        (["fe80::1:8"], "cluster.hosts='fe80::1:8': horovodrun takes no IPv6 address"),
        (["[fe80::1]:8"], "cluster.hosts='[fe80::1]:8': horovodrun takes no IPv6 address"),
        (["fe80::1%eth0:8"], "cluster.hosts='fe80::1%eth0:8': horovodrun takes no IPv6 address"),
        (["2001:db8:0:0:0:0:0:1:8"], "cluster.hosts='2001:db8:0:0:0:0:0:1:8': horovodrun takes no IPv6 address"),
        (["a:8:8"], "cluster.hosts='a:8:8': more than one colon"),
        (["me@a:8"], "cluster.hosts='me@a:8': horovodrun takes no user name"),
        (["-oProxyCommand=x:8"], "cluster.hosts='-oProxyCommand=x:8': '-oProxyCommand=x' is no host name"),
        (["$(id):8"], "cluster.hosts='$(id):8': '$(id)' is no host name"),
        (["a b:8"], "cluster.hosts='a b:8': 'a b' is no host name"),
        (["a\nb:8"], "cluster.hosts='a\\nb:8': 'a\\nb' is no host name"),
        (["a,b:8"], "cluster.hosts='a,b:8': 'a,b' is no host name"),
    ],
)
def test_a_mistake_is_one_line(entries: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_hosts(entries)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_an_empty_hostfile_names_no_host() -> None:
    with pytest.raises(UserError, match="names no host"):
        parse_hostfile("# nobody\n\n")


def test_ranks_go_to_the_first_hosts() -> None:
    hosts = parse_hosts(["a:8", "b:4", "c:1"])
    assert place(hosts, 2, 4) == ("a", "b")
    assert place(hosts, 1, 8) == ("a",)
    with pytest.raises(UserError, match=r"^cluster.nodes=4: cluster.hosts names 3$"):
        place(hosts, 4, 1)
    with pytest.raises(UserError, match=r"^cluster.ranks_per_node=5: host b has slots for 4$"):
        place(hosts, 2, 5)
