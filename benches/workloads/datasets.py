"""Whether a real data set can serve a case, told before anything is started. Imports no torch."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from benches.errors import UserError
from benches.spec import Case
from benches.workloads.references import missing

DIGITS = 1797
"""Pictures in scikit-learn's digits set, each 1 x 8 x 8, of 10 classes."""
# What torchvision's ImageFolder takes for a picture.
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def check(case: Case) -> None:
    """Raise UserError where the set is absent, does not fit the model, or is smaller than one global batch."""
    if case.data.name == "digits":
        _check_digits(case)
    elif case.data.name == "imagefolder":
        _check_imagefolder(case)


def samples(case: Case) -> int | None:
    """Units of throughput in the set; None for synthetic batches. Raises UserError where its folder cannot be read."""
    if case.data.name == "synthetic":
        return None
    items = DIGITS if case.data.name == "digits" else sum(_count(str(case.data.root)).values())
    return items * case.model.samples_per_item


def digits_file() -> Path:
    """The file of the digits set inside scikit-learn. Raises UserError where that is absent."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.exists():
            return path
    raise missing("sklearn", "data=digits")


def picture_shape(case: Case) -> tuple[int, int, int]:
    """Channels, height and width that the model takes, from `model.batch_kwargs.shape`. Raises UserError."""
    shape = case.model.batch_kwargs.get("shape")
    usable = isinstance(shape, (list, tuple)) and len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in shape)
    if not usable:
        raise UserError(
            f"model.batch_kwargs.shape={shape}: data={case.data.name} gives pictures, and model {case.model.name} "
            "does not say their [channels, height, width]"
        )
    channels, height, width = case.model.batch_kwargs["shape"]
    return channels, height, width


def _check_digits(case: Case) -> None:
    if picture_shape(case) != (1, 8, 8):
        raise UserError(
            f"data=digits: gives pictures of shape [1, 8, 8], and model {case.model.name} takes "
            f"{list(picture_shape(case))}; model=digits and model=mlp fit"
        )
    digits_file()
    _check_classes(case, 10)
    _check_size(case, DIGITS)


def _check_imagefolder(case: Case) -> None:
    channels, _, _ = picture_shape(case)
    if channels not in (1, 3):
        raise UserError(f"model.batch_kwargs.shape={list(picture_shape(case))}: pictures have 1 or 3 channels")
    if case.data.root is None:
        raise UserError("data.root=null: data=imagefolder needs the folder of the pictures, one sub-folder a class")
    _require("torchvision", "data=imagefolder")
    counts = _count(case.data.root)
    _check_classes(case, len(counts))
    _check_size(case, sum(counts.values()))


def _require(package: str, start: str) -> None:
    if find_spec(package) is None:
        raise missing(package, start)


def _check_classes(case: Case, classes: int) -> None:
    scores = case.model.batch_kwargs.get("classes")
    if isinstance(scores, int) and scores < classes:
        raise UserError(
            f"model.batch_kwargs.classes={scores}: data={case.data.name} has {classes} classes; "
            "give the model at least as many"
        )


def _check_size(case: Case, size: int) -> None:
    world = case.cluster.world_size
    needed = world * case.data.per_rank_batch
    if size < needed:
        raise UserError(
            f"data.per_rank_batch={case.data.per_rank_batch}: {world} rank(s) take {needed} pictures a step, "
            f"and data={case.data.name} has {size}"
        )


@lru_cache(maxsize=4)
def _count(root: str) -> dict[str, int]:
    """Pictures of each class under `root`. Raises UserError."""
    if not Path(root).is_dir():
        raise UserError(f"data.root={root}: no such folder")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise UserError(f"data.root={root}: holds no sub-folder; data=imagefolder takes one sub-folder a class")
    counts = {name: _pictures_under(Path(root, name)) for name in classes}
    empty = [name for name, count in counts.items() if count == 0]
    if empty:
        raise UserError(f"data.root={root}: no picture ({' '.join(PICTURES)}) in class folder {', '.join(empty[:3])}")
    return counts


def _pictures_under(folder: Path) -> int:
    return sum(name.lower().endswith(PICTURES) for _, _, names in os.walk(folder, followlinks=True) for name in names)
