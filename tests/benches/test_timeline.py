"""Horovod's timeline: real ones of two ranks, cut off at every byte, and what a made-up one must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benches import timeline

FOLDER = Path(__file__).resolve().parent / "timelines"
# Captured from tests/zoo.py's Mixed, four steps: 3492 bytes of gradients in eight tensors.
GRADIENT_BYTES = 3492
REAL = sorted(FOLDER.glob("*.json"))


def event(phase: str, tensor: int, name: str = "", **arguments: str) -> dict[str, Any]:
    return {"ph": phase, "pid": tensor, "ts": 1} | ({"name": name} if name else {}) | {"args": arguments}


def begin(*tensors: int, transport: str = "NCCL") -> list[dict[str, Any]]:
    return [event("B", t, "ALLREDUCE") for t in tensors] + [event("B", t, f"{transport}_ALLREDUCE") for t in tensors]


def end(*tensors: int, shape: str = "[2, 3]", dtype: str = "float32") -> list[dict[str, Any]]:
    return [event("E", t) for t in tensors] + [event("E", t, dtype=dtype, shape=shape) for t in tensors]


def text(*groups: list[dict[str, Any]]) -> bytes:
    names = [{"ph": "M", "name": "process_name", "pid": t, "args": {"name": f"allreduce.p{t}"}} for t in range(5)]
    return json.dumps([*names, *(one for group in groups for one in group)]).encode()


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_every_step_of_a_real_timeline_sends_all_gradients_once(path: Path) -> None:
    steps = timeline.messages_of_steps(path.read_bytes())
    assert len(steps) == 4
    assert [sum(step) for step in steps] == [GRADIENT_BYTES] * 4
    found = timeline.summary(path.read_bytes())
    assert found["messages_per_step"] == len(found["message_bytes"])
    assert found["messages_per_step_range"] == [min(map(len, steps)), max(map(len, steps))]


def test_the_messages_of_the_captured_steps_in_order() -> None:
    steps = timeline.messages_of_steps((FOLDER / "gloo.json").read_bytes())
    assert steps == [[36, 3456], [548, 2880, 64], [4, 32, 1664, 1792], [548, 2944]]
    assert timeline.summary((FOLDER / "gloo.json").read_bytes())["message_bytes"] in ([36, 3456], [548, 2944])


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_timeline_cut_off_at_any_byte_gives_the_steps_before(path: Path) -> None:
    data = path.read_bytes()
    whole = timeline.messages_of_steps(data)
    counts = set()
    every = 5500 if path.stem == "gloo" else 0  # a step and the start of the next; the rest repeats them
    for length in (*range(every), *range(every, len(data), 89)):
        found = timeline.messages_of_steps(data[:length])
        assert found == whole[: len(found)], f"cut off after {length} bytes"
        counts.add(len(found))
    # One step alone is not told: nothing yet says that it is complete.
    assert counts == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("data", [b"", b"[", b"[\n", b"null", b"[1, 2]", b"\xff\xfe", b'[{"ph": "E"}]', b"{" * 50])
def test_what_is_no_timeline_gives_nothing(data: bytes) -> None:
    assert timeline.summary(data) == {}


def test_messages_in_flight_together_are_told_apart() -> None:
    """As on a GPU: the next message begins its ALLREDUCE before the first has ended it."""
    both = [event("B", 1, "ALLREDUCE"), event("B", 2, "ALLREDUCE"), event("B", 3, "ALLREDUCE")]
    reduced = [
        *(event("B", t, "NCCL_ALLREDUCE") for t in (1, 2)),
        *end(1, 2),
        event("B", 3, "NCCL_ALLREDUCE"),
        *end(3, shape="[]"),
    ]
    steps = timeline.messages_of_steps(text(both, reduced, both, reduced))
    assert steps == [[48, 4], [48, 4]]


def test_compressed_gradients_count_as_they_travel() -> None:
    step = [*begin(1), *end(1, dtype="float16")]
    assert timeline.messages_of_steps(text(step, step)) == [[12], [12]]


def test_a_message_that_failed_makes_its_step_unknown() -> None:
    good, failed = [*begin(1), *end(1)], [*begin(1), event("E", 1), event("E", 1)]
    assert timeline.messages_of_steps(text(good, failed, good)) == [[24], [24]]


def test_our_own_messages_belong_to_no_step() -> None:
    ours = {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "allreduce.ringduel.sum"}}
    step = [*begin(1), *end(1), ours, *begin(9), *end(9)]
    assert timeline.messages_of_steps(text(step, step)) == [[24], [24]]
