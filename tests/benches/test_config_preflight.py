"""Checks before any rank starts: interpreter, results folder, one's own model, and what Horovod carries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from composing import study

from benches import cli, preflight, probe
from benches.errors import UserError
from benches.probe import Answer
from benches.spec import Case

EVERYTHING = {"gloo": True, "mpi": True, "nccl": False}
MINE = ("model=custom", "model.factory=my_net:Net", "model.batch=my_net:batch", "engine=ddp")
MY_NET = """
import torch
class Net(torch.nn.Linear):
    def __init__(self, width=3): super().__init__(width, 1)
def batch(generator, per_rank_batch, device): return torch.rand(per_rank_batch, 3, generator=generator)
"""


def cases(*words: str, gpus: int = 0) -> list[Case]:
    return [one.case for one in study(*words, gpus=gpus).contestants]


@pytest.mark.parametrize(
    ("answer", "words", "line"),
    [
        (Answer(), ("engine=horovod",), "engine=horovod: Horovod is not installed; run: ringduel install-horovod"),
        (
            Answer(horovod_fault="ImportError: undefined symbol: x"),
            ("engine=horovod",),
            "engine=horovod: Horovod does not import: ImportError: undefined symbol: x; "
            "run: ringduel install-horovod --force",
        ),
        (
            Answer(horovod={**EVERYTHING, "mpi": False}),
            ("engine=horovod", "transport=mpi"),
            "transport=mpi: this Horovod was built without it; choices: gloo, or run: ringduel install-horovod --force",
        ),
        (
            Answer(horovod=EVERYTHING),
            ("engine=horovod", "transport=nccl"),
            "transport=nccl: this Horovod was built without it; choices: gloo, mpi, "
            "or run: ringduel install-horovod --force --gpu",
        ),
        (Answer(fault="model.factory=a:b: no"), ("engine=ddp",), "model.factory=a:b: no"),
        (
            Answer(lacks={"ddp.comm_hook=bf16": "null, fp16 (torch 2.13.0+cpu has no NCCL)"}),
            ("engine=ddp", "ddp.comm_hook=bf16"),
            "ddp.comm_hook=bf16: this torch does not have it; takes null, fp16 (torch 2.13.0+cpu has no NCCL)",
        ),
    ],
)
def test_what_an_answer_refuses(answer: Answer, words: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as caught:
        preflight.judge(answer, cases(*words, gpus=2))
    assert str(caught.value) == line


def test_what_a_torch_may_lack_is_asked_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wanting = cases("engine=ddp"), cases("engine=ddp", "ddp.comm_hook=bf16", "ddp.first_bucket_mb=2")
    assert [preflight.may_lack(case) for case in plain] == [[]]
    assert [sorted(preflight.may_lack(case)) for case in wanting] == [sorted(probe.LACKING)]
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    monkeypatch.setattr("benches.engines.ddp.sets_first_bucket", lambda: False)
    assert str(probe.no_bf16_hook()).startswith("null, fp16 (torch ")
    assert str(probe.no_first_bucket()).startswith("null (torch ")


def test_ddp_does_not_ask_for_horovod() -> None:
    preflight.judge(Answer(), cases("engine=ddp"))
    preflight.judge(Answer(horovod=EVERYTHING), cases("study.contestants.horovod.transport=[gloo,mpi]"))


def test_interpreters() -> None:
    preflight.check_interpreter(None)
    preflight.check_interpreter(sys.executable)
    with pytest.raises(UserError, match=r"^python=/no/such/python: no such interpreter"):
        preflight.check_interpreter("/no/such/python")


def test_an_interpreter_that_cannot_run_ranks() -> None:
    with pytest.raises(UserError, match=r"^python=/bin/false: cannot run ranks: exit status 1$"):
        preflight.ask("/bin/false", cases("engine=ddp"))


def test_results_folders(tmp_path: Path) -> None:
    preflight.check_results(tmp_path / "not" / "yet" / "there")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^results=.*/file/x: .*/file is no folder$"):
        preflight.check_results(tmp_path / "file" / "x")


def test_a_plan_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["plan", "engine=ddp", "model=mlp", "device=cpu", f"results={tmp_path}/file/x"]) == cli.MISTAKE
    assert capsys.readouterr().err == f"ringduel: results={tmp_path}/file/x: {tmp_path}/file is no folder\n"


def test_an_unwritable_results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the answer of the system is pretended.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"^results=.*/x: .* cannot be written$"):
        preflight.check_results(tmp_path / "x")


def test_real_data_is_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data.root=/no/such: no such folder$"):
        preflight.check(study("engine=ddp", "data=imagefolder", "data.root=/no/such"), tmp_path)


@pytest.mark.parametrize(("cluster", "asked"), [("kubernetes", False), ("hosts", True)])
def test_a_launcher_pod_is_not_asked_for_gpus(cluster: str, asked: bool) -> None:
    words = ["device=cuda", f"cluster={cluster}", "cluster.nodes=2", "cluster.ranks_per_node=1"]
    words += ["cluster.hosts=[a:8,b:8]"] if cluster == "hosts" else ["cluster.kubernetes.gpus=1"]
    own = cases("engine=ddp", *words, gpus=8)
    assert json.loads(preflight._question(None, own, None)[-1])["gpus"] is asked


class TestOnesOwnModel:
    """In a folder that also holds an `analysis` of its owner's."""

    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_net.py").write_text(MY_NET)
        for shadow in ("analysis", "benches"):
            (tmp_path / shadow).mkdir()
            (tmp_path / shadow / "__init__.py").write_text("raise RuntimeError('a shadow')\n")
        monkeypatch.chdir(tmp_path)

    def test_it_is_found_and_ours_is_not_shadowed(self, tmp_path: Path) -> None:
        preflight.check(study(*MINE), tmp_path)

    def test_what_does_not_import_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"^model.factory=my_net:Ned: module my_net has no Ned$"):
            preflight.check(study(*MINE, "model.factory=my_net:Ned"), tmp_path)
