"""What names people and machines is taken out of texts; what does not stays."""

from __future__ import annotations

import pytest

from benches.scrub import Scrubber, accounts


def scrubber() -> Scrubber:
    return Scrubber(["gpu17.example.org", "vm"], {"joe", "root"}, {"/data/run": "study", "/data": "folder"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cd /data && /data/run/cases/1.yaml", "cd {folder} && {study}/cases/1.yaml"),
        ("/datastore/x", "{path-1}"),
        ("/usr/bin/mpirun -np 2", "{path-1}/bin/mpirun -np 2"),
        ("PATH=/a/b:/c '-I/d e' -I/f", "PATH={path-1}:{path-2} '-I{path-3} e' -I{path-4}"),
        ("'/home/a b/c.py', line 3", "'{path-1}', line 3"),
        ('File "/opt/x y/z.py", line 3', 'File "{path-1}", line 3'),
        ("~/x ~joe/x", "{path-1} {path-2}"),
        ("gpu17.example.org gpu17 gpu17-ib0", "{host-1} {host-2} {host-2}-ib0"),
        ("on vm: svm vmx", "on {host-1}: svm vmx"),
        ("joe@build7, root@build7, root@localhost", "{user-1}@{host-1}, root@{host-1}, root@localhost"),
        ("joe's, not joey's", "{user-1}'s, not joey's"),
        ("10.1.2.3:80, 127.0.0.1, ::1, fe80::1%eth0", "{address-1}:80, 127.0.0.1, ::1, {address-2}%eth0"),
        ("aa:bb:cc:dd:ee:ff", "{address-1}"),
        ("tcp://10.1.2.3:29500 http://u:p@x/y", "{url-1} {url-2}"),
        ("HOROVOD_SECRET_KEY=abc= x", "HOROVOD_SECRET_KEY={secret-1} x"),
        ("--token abc; password: 'a b'", "--token {secret-1}; password: {secret-2}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer {secret-1}"),
        (f"ghp_{'a' * 36}, AKIA{'A' * 16}", "{secret-1}, {secret-2}"),
    ],
)
def test_it_is_taken_out(text: str, said: str) -> None:
    assert scrubber().text(text) == said
    assert scrubber().text(said) == said, "once is enough"


@pytest.mark.parametrize(
    "text",
    ["ddp/gloo 12.3 image/s n/a", "5.0.11", "05:37:01", "tokens: 512", "2026-01-01T00:00:00+00:00", "../x", "1 / 2",
     "benches.workloads.models:digits_net", "localhost:2", "$ORIGIN/../../torch/lib", "std::vector c10d::allreduce_",
     "--allow-run-as-root", "monkey=1", "fp32, 64×64"],
)  # fmt: skip
def test_it_stays(text: str) -> None:
    assert scrubber().text(text) == text


def test_hosts_and_users_are_words_of_another_meaning_where_told_so() -> None:
    own = Scrubber(["local"], {"ddp"}, {})
    tree = {"cluster": {"name": "local", "hosts": ["local:8"]}, "engine": "ddp"}
    assert own.tree(tree, lambda key: key == "hosts") == {
        "cluster": {"name": "local", "hosts": ["{host-1}:8"]},
        "engine": "ddp",
    }


def test_what_was_equal_stays_equal_and_is_counted() -> None:
    own = scrubber()
    assert own.tree(["/x/a", "/x/b", {"k": "/x/a"}, 3, None], lambda _: True) == [
        "{path-1}", "{path-2}", {"k": "{path-1}"}, 3, None
    ]  # fmt: skip
    assert (own.replaced["path"], own.distinct()["path"]) == (3, 2)


def test_a_variable_with_a_telling_name_has_no_value() -> None:
    tree = {"environment": {"WANDB_API_KEY": "abc", "OMP_NUM_THREADS": "1"}, "key": "0.28.1-torch2.14"}
    assert scrubber().tree(tree, lambda _: False) == {
        "environment": {"WANDB_API_KEY": "{secret-1}", "OMP_NUM_THREADS": "1"},
        "key": "0.28.1-torch2.14",
    }


def test_accounts_are_read_from_home_folders() -> None:
    assert accounts(["/home/joe/x", "see ~ann/y", "/Users/bob", "a/home"]) == {"joe", "ann", "bob"}
