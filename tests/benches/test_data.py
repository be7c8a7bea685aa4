"""Data: a batch depends on case, rank and step alone; ranks share a real set; bad sets end in one line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.nn.functional import cross_entropy
from workload_cases import case

from benches.errors import UserError
from benches.workloads import datasets
from benches.workloads.data import POOL, batch_for, make_batches, stream_seed
from benches.workloads.models import digits_net

CPU = torch.device("cpu")
DIGITS = {"name": "digits", "per_rank_batch": 32}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads that wait for each other on a busy machine take minutes."""
    torch.set_num_threads(1)


def prepared(case_: Any, rank: int, world: int, steps: int, first: int = 0) -> Any:
    batches = make_batches(case_, rank, world, CPU)
    batches.prepare(first, steps)
    return batches


def equal(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_stream_seeds_differ_where_sums_would_collide() -> None:
    points = list(itertools.product(range(4), range(30), range(8), ("step", "batch")))
    assert len({stream_seed(*point) for point in points}) == len(points)
    assert all(0 <= stream_seed(*point) < 2**32 for point in points)


def test_stream_seed_stays_what_it_was() -> None:
    # The first eight digits of sha256("1/2/3/step"); a change would silently change every study.
    assert stream_seed(1, 2, 3) == 0x03718AB7


def test_synthetic_batches_differ_by_step_rank_and_seed() -> None:
    made = [
        prepared(case(seed=seed), rank, 2, POOL)(step)
        for seed, rank, step in itertools.product((1, 2), (0, 1), range(POOL))
    ]
    assert len({tuple(x.flatten().tolist()) for x, _ in made}) == 2 * 2 * POOL
    assert made[0][0].shape == (4, 1, 8, 8)
    assert made[0][1].shape == (4,)


def test_synthetic_steps_are_look_ups_in_a_pool_of_eight() -> None:
    batches = prepared(case(), 1, 2, 20)
    assert len({id(batches(step)) for step in range(20)}) == POOL == 8
    held = batches(3)
    batches.prepare(20, 5)
    assert batches(19) is held
    assert batches.indices(0) is None


def test_any_rank_s_batch_can_be_made_again() -> None:
    for data in ({}, DIGITS):
        for rank, step in ((0, 0), (1, 5), (2, 71)):
            there = prepared(case(data=data, ranks=3), rank, 3, 1, first=step)(step)
            assert equal(there, batch_for(case(data=data, ranks=3), rank, 3, step, CPU))


def test_drawing_leaves_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    prepared(case(), 0, 1, 8)
    prepared(case(data=DIGITS), 0, 1, 80)
    assert torch.equal(before, torch.get_rng_state())


def test_failing_batch_function_is_named() -> None:
    broken = case(model={"batch_kwargs": {"shape": [1, 8, 8], "classes": 0}})
    with pytest.raises(UserError, match=r"^model\.batch_kwargs=.*benches\.workloads\.batches:images failed: Runtime"):
        prepared(broken, 0, 1, 1)


def epoch(world: int, number: int, per_rank_batch: int = 32) -> list[list[int]]:
    """Samples of each global step of one epoch of digits, all ranks together."""
    case_ = case(data={"name": "digits", "per_rank_batch": per_rank_batch}, ranks=world)
    ranks = [make_batches(case_, rank, world, CPU) for rank in range(world)]
    length = 1797 // (world * per_rank_batch)
    steps = range(number * length, (number + 1) * length)
    return [[index for batches in ranks for index in batches.indices(step)] for step in steps]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_digits_are_shared_without_overlap_and_without_the_tail(world: int) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn (extra data) is not installed")
    steps = epoch(world, 0)
    taken = [index for step in steps for index in step]
    assert len(taken) == len(set(taken)) == 1797 // (32 * world) * 32 * world
    assert epoch(world, 0) == steps
    later = epoch(world, 1)
    assert sorted(later[0]) != sorted(steps[0])


def test_a_global_batch_holds_the_same_digits_at_every_world_size() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn (extra data) is not installed")
    alone, four = epoch(1, 3, per_rank_batch=64), epoch(4, 3, per_rank_batch=16)
    assert [sorted(step) for step in alone] == [sorted(step) for step in four]


def test_digits_are_the_real_ones() -> None:
    sets = pytest.importorskip("sklearn.datasets", reason="scikit-learn (extra data) is not installed")
    batches = prepared(case(data=DIGITS), 0, 1, 2)
    x, y = batches(1)
    chosen = batches.indices(1)
    assert x.shape == (32, 1, 8, 8)
    assert torch.equal(x[:, 0] * 16, torch.from_numpy(sets.load_digits().images[chosen]).float())
    assert y.tolist() == sets.load_digits().target[chosen].tolist()


def test_the_digits_net_learns_them() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn (extra data) is not installed")
    torch.manual_seed(1)
    model, batches = digits_net(), prepared(case(data=DIGITS), 0, 1, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(200):
        x, y = batches(step)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    batches.prepare(200, 10)
    right = [(model(x).argmax(1) == y).float().mean() for x, y in map(batches, range(200, 210))]
    assert sum(right) / 10 > 0.9


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"data": {"name": "digits", "per_rank_batch": 1000}, "ranks": 2},
            "data.per_rank_batch=1000: 2 rank(s) take 2000 pictures a step, and data=digits has 1797",
        ),
        (
            {"data": DIGITS, "model": {"name": "big", "batch_kwargs": {"shape": [3, 64, 64]}}},
            "data=digits: gives pictures of shape [1, 8, 8], and model big takes [3, 64, 64]; model=d",
        ),
        (
            {"data": DIGITS, "model": {"name": "text", "batch_kwargs": {"length": 8}}},
            "model.batch_kwargs.shape=None: data=digits gives pictures, and model text does not say",
        ),
        (
            {"data": DIGITS, "model": {"batch_kwargs": {"shape": [1, 8, 8], "classes": 9}}},
            "model.batch_kwargs.classes=9: data=digits has 10 classes",
        ),
    ],
)
def test_a_case_that_digits_do_not_fit(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        datasets.check(case(**fields))
    assert str(caught.value).startswith(line)


def test_absent_scikit_learn_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^data=digits: no module named sklearn; pip install -e '\.\[data\]'$"):
        datasets.check(case(data=DIGITS))


# Pictures on disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of 7 and 6 pictures of one grey each, 20 x 14; the grey tells the sample."""
    pytest.importorskip("torchvision", reason="torchvision (extra vision) is not installed")
    from PIL import Image

    for number in range(13):
        folder = tmp_path / ("cat" if number < 7 else "dog")
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (20, 14), (number * 10,) * 3).save(folder / f"{number:02}.png")
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    return tmp_path


def on_disk(root: Path | None, *, ranks: int = 2, shape: list[int] | None = None, **data: Any) -> Any:
    kwargs = {"shape": shape or [3, 8, 6], "classes": 2}
    content = {"name": "imagefolder", "per_rank_batch": 3, "root": root and str(root), **data}
    return case(ranks=ranks, model={"batch_kwargs": kwargs}, data=content)


def greys(batch: Any) -> list[int]:
    """Numbers of the samples in a batch, from their grey."""
    return [round(float((x.mean() + 1) / 2 * 25.5)) for x in batch[0]]


def test_pictures_are_cut_to_shape_and_shared_without_overlap(pictures: Path) -> None:
    ranks = [prepared(on_disk(pictures), rank, 2, 4) for rank in range(2)]
    for _epoch in range(2):
        seen: list[int] = []
        for step in (2 * _epoch, 2 * _epoch + 1):
            for batches in ranks:
                batch = batches(step)
                assert batch[0].shape == (3, 3, 8, 6)
                assert greys(batch) == batches.indices(step)
                assert batch[1].tolist() == [int(number >= 7) for number in greys(batch)]
                seen += greys(batch)
        assert len(seen) == len(set(seen)) == 12


def test_grey_models_get_grey_pictures(pictures: Path) -> None:
    x, _ = batch_for(on_disk(pictures, shape=[1, 4, 4]), 0, 2, 0, CPU)
    assert x.shape == (3, 1, 4, 4)


def test_loader_goes_on_where_it_stands_and_starts_anew_elsewhere(pictures: Path) -> None:
    batches = prepared(on_disk(pictures), 1, 2, 2)
    first = batches(0)
    batches.prepare(1, 1)
    assert greys(batches(1)) == batches.indices(1)
    with pytest.raises(ValueError, match="step 0: the loader stands at step 2"):
        batches(0)
    batches.prepare(0, 1)
    assert equal(batches(0), first)


def test_loader_processes_give_the_same_batches(pictures: Path) -> None:
    case_ = on_disk(pictures, workers=2)
    batches = prepared(case_, 1, 2, 5)
    for step in range(5):
        assert equal(batches(step), batch_for(case_, 1, 2, step, CPU))


READER = """
import sys, time, torch
from test_data import CPU, on_disk, prepared
if __name__ == "__main__":
    batches = prepared(on_disk(sys.argv[1], workers=1), 0, 2, 9)
    batches(0)
    print("reading", flush=True)
    time.sleep(300)
"""


def test_no_loader_process_outlives_a_killed_rank(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("reader") / "reader.py"
    script.write_text(READER)
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    command = [sys.executable, str(script), str(pictures)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        watchdog = threading.Timer(120, rank.kill)
        watchdog.start()
        try:
            assert rank.stdout.readline() == "reading\n"
            loaders = psutil.Process(rank.pid).children(recursive=True)
            lines = [p.cmdline() for p in loaders]
        finally:
            rank.kill()
            watchdog.cancel()
    assert any("spawn_main" in " ".join(p) for p in lines)
    _, alive = psutil.wait_procs([p for p in loaders if p.is_running()], timeout=8)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_pictures_are_what_torchvision_takes_for_one() -> None:
    folder = pytest.importorskip("torchvision.datasets.folder", reason="torchvision (extra vision) is not installed")
    assert set(datasets.PICTURES) == set(folder.IMG_EXTENSIONS)


def test_a_folder_that_cannot_serve(pictures: Path) -> None:
    (pictures / "bare").mkdir()
    (pictures / "hollow" / "mouse").mkdir(parents=True)
    lines = {
        "data.root=null: data=imagefolder needs the folder": on_disk(None),
        f"data.root={pictures}/none: no such folder": on_disk(pictures / "none"),
        f"data.root={pictures}/bare: holds no sub-folder": on_disk(pictures / "bare"),
        f"data.root={pictures}/hollow: no picture (.jpg ": on_disk(pictures / "hollow"),
        "model.batch_kwargs.shape=[2, 8, 8]: pictures have 1 or 3 channels": on_disk(pictures, shape=[2, 8, 8]),
    }
    for line, case_ in lines.items():
        with pytest.raises(UserError) as caught:
            datasets.check(case_)
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)


def test_too_few_pictures_or_scores(pictures: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.per_rank_batch=7: 2 rank\(s\) take 14 pictures a step, .* has 13$"):
        datasets.check(on_disk(pictures, per_rank_batch=7))
    (pictures / "eel").mkdir()
    (pictures / "cat" / "00.png").rename(pictures / "eel" / "00.png")
    datasets._count.cache_clear()
    with pytest.raises(UserError, match=r"^model\.batch_kwargs\.classes=2: data=imagefolder has 3 classes"):
        datasets.check(on_disk(pictures))
