"""What a command line becomes: contestants, axes, defaults, layers, and what is left to the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from composing import names, resolved, study

from benches.errors import UserError
from benches.spec import Study

SMOKE_ROWS = [
    ("local", 1),
    ("ddp-gloo", 1),
    ("horovod-gloo", 1),
    ("horovod-mpi", 1),
    ("ddp-gloo", 2),
    ("horovod-gloo", 2),
    ("horovod-mpi", 2),
]


def rows(found: Study, model: str) -> list[tuple[str, int]]:
    ours = [one for one in found.contestants if one.case.model.name == model]
    return [(one.name, one.case.cluster.world_size) for one in ours]


@pytest.mark.parametrize(("gpus", "transport", "device"), [(0, "gloo", "cpu"), (2, "nccl", "cuda")])
def test_without_an_experiment_both_engines_meet(gpus: int, transport: str, device: str) -> None:
    found = study(gpus=gpus)
    assert found.name == "study"
    assert [one.case.cell for one in found.contestants] == [f"ddp/{transport}", f"horovod/{transport}"]
    assert {one.case.device for one in found.contestants} == {device}


def test_engine_and_transport_make_a_study_of_one() -> None:
    found = study("engine=horovod", "transport=mpi", "model=mlp")
    assert [(one.name, one.case.cell, one.case.model.name) for one in found.contestants] == [
        ("horovod", "horovod/mpi", "mlp")
    ]


def test_smoke_has_seven_rows_for_each_model() -> None:
    found = study("experiment=smoke")
    assert found.name == "smoke"
    assert rows(found, "resnet18_64") == rows(found, "digits") == SMOKE_ROWS
    assert {one.case.device for one in found.contestants} == {"cpu"}
    assert {one.case.data.name for one in found.contestants if one.case.model.name == "digits"} == {"digits"}
    assert found.launches >= 3


def test_smoke_stays_on_the_cpu_where_there_are_gpus() -> None:
    assert {one.case.device for one in study("experiment=smoke", gpus=4).contestants} == {"cpu"}


def test_ci_is_one_pair_at_world_size_two() -> None:
    found = study("experiment=ci")
    assert [(one.case.cell, one.case.cluster.world_size) for one in found.contestants] == [
        ("ddp/gloo", 2),
        ("horovod/gloo", 2),
    ]


@pytest.mark.parametrize("gpus", [1, 4])
def test_gpu_takes_every_visible_gpu(gpus: int) -> None:
    for one in study("experiment=gpu", cores=16, gpus=gpus).contestants:
        case = one.case
        assert (case.transport, case.device, case.precision, case.channels_last) == ("nccl", "cuda", "bf16", True)
        assert (case.model.name, case.cluster.ranks_per_node) == ("resnet50", gpus)


def test_an_experiment_wins_over_the_files_and_the_command_line_over_it() -> None:
    assert {one.case.limit_s for one in study("experiment=ci").contestants} == {60.0}
    assert {one.case.limit_s for one in study("experiment=ci", "limit_s=70").contestants} == {70.0}
    assert {one.case.model.name for one in study("experiment=ci", "model=mlp").contestants} == {"mlp"}


def test_a_typed_value_replaces_an_axis() -> None:
    found = study("experiment=smoke", "model=mlp", "cluster.ranks_per_node=[2]")
    assert {tuple(one.point.items()) for one in found.contestants} == {
        (("model", "mlp"), ("cluster.ranks_per_node", 2))
    }
    assert "local" not in names(found)
    assert {one.case.model.name for one in study("experiment=smoke", "model=[mlp,digits]").contestants} == {
        "mlp",
        "digits",
    }


def test_an_axis_of_lists_takes_each_as_one_value() -> None:
    found = study("cluster=hosts", "study.axes.cluster.hosts=[[a:2],[a:2,b:2]]").contestants
    assert [(one.case.cluster.hosts, one.case.cluster.nodes) for one in found[::2]] == [
        (("a:2",), 1),
        (("a:2", "b:2"), 2),
    ]


def test_contestants_are_edited_added_and_deleted() -> None:
    found = study(
        "study.contestants.ddp.ddp.bucket_cap_mb=[null,25]",
        "~study.contestants.horovod",
        "study.contestants.h.engine=horovod",
        "study.contestants.h.transport=[gloo,mpi]",
        "study.contestants.h.horovod={cycle_time_ms: 5}",
    )
    assert names(found) == ["ddp-bucket_cap_mb=null", "ddp-bucket_cap_mb=25", "h-gloo", "h-mpi"]
    assert [one.settings for one in found.contestants] == [
        {"ddp.bucket_cap_mb": None},
        {"ddp.bucket_cap_mb": 25.0},
        {"transport": "gloo"},
        {"transport": "mpi"},
    ]
    assert found.contestants[3].case.horovod is not None
    assert found.contestants[3].case.horovod.cycle_time_ms == 5


def test_files_may_be_swept_by_axes_and_contestants() -> None:
    by_axis = study("study.axes.model=[mlp,digits]", "engine=ddp")
    assert [one.case.data.name for one in by_axis.contestants] == ["synthetic", "digits"]
    by_contestant = study("study.contestants.ddp.model=[mlp,digits]", "~study.contestants.horovod")
    assert names(by_contestant) == ["ddp-mlp", "ddp-digits"]
    assert {one.case.data.name for one in study("model=digits", "data=synthetic").contestants} == {"synthetic"}


def test_a_list_valued_key_sweeps_as_a_list_of_lists() -> None:
    words = ("model=custom", "model.factory=a:b", "model.batch=a:c", "engine=ddp")
    whole = study(*words, "model.kwargs.sizes=[1,2]")
    assert whole.contestants[0].case.model.kwargs == {"sizes": [1, 2]}
    swept = study(*words, "study.axes.model.kwargs.sizes=[[1,2],[3]]")
    assert [one.case.model.kwargs["sizes"] for one in swept.contestants] == [[1, 2], [3]]


def test_only_the_settings_of_the_engine_in_use_enter_a_case() -> None:
    plain, other = study("engine=ddp"), study("study.contestants.horovod.horovod.cycle_time_ms=3")
    assert plain.contestants[0].case.horovod is None
    assert plain.contestants[0].case.id == other.contestants[0].case.id
    local = study("engine=local", "cluster.ranks_per_node=1").contestants[0].case
    assert (local.ddp, local.horovod, local.transport) == (None, None, None)


def test_the_bare_model_stands_once_however_many_points_leave_it_unchanged() -> None:
    found = study(
        "study.contestants.base.engine=local",
        "study.axes.cluster.ranks_per_node=[1,2]",
        "study.axes.ddp.bucket_cap_mb=[1,25]",
    )
    assert names(found).count("base") == 1
    # The other contestants meet at each point, even where an axis is nothing to one of them.
    assert names(found).count("horovod") == names(found).count("ddp") == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("data.global_batch=64",), 32),
        (("data.per_rank_batch=8",), 8),
        (("data.global_batch=64", "cluster.ranks_per_node=1"), 64),
        (("study.axes.data.global_batch=[12]",), 6),
    ],
)
def test_the_batch_of_a_rank(words: tuple[str, ...], expected: int) -> None:
    assert {one.case.data.per_rank_batch for one in study(*words).contestants} == {expected}


def test_mpi_yields_where_there_is_no_spare_core_and_only_mpi() -> None:
    def policy(cores: int, *words: str) -> list[bool]:
        transports = "study.contestants.horovod.transport=[gloo,mpi]"
        found = study(transports, *words, cores=cores)
        return [one.case.cluster.mpi_yield_when_idle for one in found.contestants]

    assert policy(2) == policy(3) == [False, False, True]
    assert policy(4) == [False, False, False]
    assert policy(4, "cluster.mpi_yield_when_idle=true") == [False, False, True]
    assert policy(2, "cluster.mpi_yield_when_idle=false") == [False, False, False]


def test_ids_do_not_depend_on_the_machine_where_nothing_was_left_to_it() -> None:
    few, many = study("device=cpu", cores=2), study("device=cpu", cores=64, gpus=8)
    assert few == many
    assert few.hash == many.hash


def test_ids_do_not_depend_on_how_a_value_is_written() -> None:
    one, other = study("ddp.bucket_cap_mb=25"), study("ddp.bucket_cap_mb=25.0", "seed=1")
    assert [row.case.id for row in one.contestants] == [row.case.id for row in other.contestants]
    axis, written = study("study.axes.ddp.bucket_cap_mb=[25]"), study("study.axes.ddp.bucket_cap_mb=[25.0]")
    assert axis.hash == written.hash


def test_warnings_name_overridden_threads_and_crowded_cores() -> None:
    assert resolved(cores=4).warnings == []
    assert resolved(cores=2, shell={"OMP_NUM_THREADS": "8"}).warnings == [
        "OMP_NUM_THREADS=8 (in your environment): ranks get cluster.threads_per_rank instead",
        "no spare core for communication: 2 rank(s) on 2 core(s), fewer than two a rank; take fewer ranks a "
        "host, or a larger host",
    ]


def test_the_reference_must_match_and_is_kept() -> None:
    assert study("study.reference={engine: ddp, transport: gloo}").reference == {"engine": "ddp", "transport": "gloo"}


def test_numbers_become_text_where_text_is_taken() -> None:
    found = study("study.name=2024", "cluster.env.A=007", "study.axes.cluster.env.B=[1]", "engine=ddp")
    assert found.name == "2024"
    assert found.contestants[0].case.cluster.env == {"A": "007", "B": "1"}


def test_paths_are_absolute_since_ranks_start_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = resolved("data=imagefolder", "data.root=pictures", "python=env/bin/python", "results=out", "engine=ddp")
    case = found.study.contestants[0].case
    assert case.data.root == str(tmp_path / "pictures")
    assert case.python == str(tmp_path / "env/bin/python")
    assert found.results == tmp_path / "out"
    assert study("python=python3", "engine=ddp").contestants[0].case.python == "python3"


class TestOnesOwnConf:
    """`--config-dir`."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        folder = tmp_path / "it's a conf, [mine]"
        (folder / "model").mkdir(parents=True)
        (folder / "experiment").mkdir()
        (folder / "model" / "mine.yaml").write_text(
            "name: mine\nfactory: my_net:Net\nkwargs: {width: 3}\nbatch: my_net:batch\n"
        )
        return folder

    def experiment(self, own: Path, text: str) -> None:
        (own / "experiment" / "e.yaml").write_text(text)

    def test_its_files_join_ours(self, own: Path) -> None:
        self.experiment(own, "# @package _global_\ndefaults: [{override /model: mine}]\nengine: ddp\nseed: 9\n")
        found = study("experiment=e", own=own)
        case = found.contestants[0].case
        assert (found.name, names(found), case.model.factory, case.seed) == ("e", ["ddp"], "my_net:Net", 9)
        assert case.model.sample == "sample"

    def test_a_file_that_would_hide_behind_ours_is_refused(self, own: Path) -> None:
        (own / "model" / "mlp.yaml").write_text("name: mlp\n")
        with pytest.raises(UserError, match=r"model/mlp.yaml would hide behind Ringduel's own file; rename it$"):
            study(own=own)

    def test_a_missing_folder_is_refused(self, own: Path) -> None:
        with pytest.raises(UserError, match=r"^--config-dir=.*gone: no such folder$"):
            study(own=own / "gone")

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("engine: ddp\n", "experiment=e: its file must begin with: # @package _global_"),
            ("# @package _global_\nsed: 3\n", "sed=3: unknown key; nearest: seed"),
            ("# @package _global_\nblock_steps: x\n", "block_steps=x: takes a whole number of at least 1"),
            ("# @package _global_\nstudy: {launchs: 3}\n", "study.launchs=3: unknown key; nearest: study.launches"),
            (
                "# @package _global_\ncluster.nodes: 2\n",
                "cluster.nodes=2: cluster.nodes is a dotted key in a mapping; write it nested",
            ),
            (
                "# @package _global_\nstudy: {axes: {cluster.nodes: [1], cluster: {nodes: [2]}}}\n",
                "study.axes.cluster.nodes=[1]: cluster.nodes is a dotted key in a mapping; write it nested",
            ),
            ("# @package _global_\nstudy: {contestants: [ddp]}\n", None),
            ("# @package _global_\nseed: ${nope}\n", None),
            ("# @package _global_\ndefaults: [{override /model: nope}]\n", None),
            ("# @package _global_\nseed: [\n", None),
        ],
    )
    def test_a_faulty_file_ends_in_one_line(self, own: Path, text: str, line: str | None) -> None:
        self.experiment(own, text)
        with pytest.raises(UserError) as caught:
            study("experiment=e", own=own)
        assert "\n" not in str(caught.value)
        assert line is None or str(caught.value) == line
