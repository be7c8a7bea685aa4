"""Horovod's timeline read back: the fused messages of a step and their bytes. A file that breaks off is read so far.

The format is Chrome's trace (horovod/common/timeline.cc, 0.28.1). Each tensor is a process there. A tensor's ALLREDUCE
holds activities, among them the reduction itself: GLOO_ALLREDUCE, MPI_ALLREDUCE, NCCL_ALLREDUCE. All tensors of a fused
message begin that one together, before the first of them ends it; and that is how a message is told from the next.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

OPERATION = "ALLREDUCE"
"""What holds the activities of one tensor; the negotiation before it has a name of its own."""
REDUCTION = "_ALLREDUCE"
"""How the activity of the reduction ends, whatever the transport."""
OURS = "ringduel."
"""Names of messages that the suite itself sends, which belong to no step."""
SIZES = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "int32": 4, "float32": 4}
SIZES |= {"int64": 8, "float64": 8}
BETWEEN = re.compile(r"[\s,\[\]]*")


@dataclass
class Message:
    """One fused message: bytes by tensor, None until the tensor's end is seen."""

    sizes: dict[str, int | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int | None:
        """None where the file breaks off before all of its tensors have ended."""
        known = [size for size in self.sizes.values() if size is not None]
        return sum(known) if len(known) == len(self.sizes) else None


def summary(data: bytes) -> dict[str, Any]:
    """Messages of the step with the median number of them, and the fewest and most; empty where it cannot be told."""
    steps = sorted(messages_of_steps(data), key=len)
    if not steps:
        return {}
    typical = steps[(len(steps) - 1) // 2]
    return {
        "messages_per_step": len(typical),
        "message_bytes": typical,
        "messages_per_step_range": [len(steps[0]), len(steps[-1])],
    }


def messages_of_steps(data: bytes) -> list[list[int]]:
    """Bytes of each message, in order, of each step that is there in full."""
    steps = _steps(_messages(data))
    # Each gradient is sent once a step, so a step has ended where a tensor comes again. Whether the last is complete,
    # the ones before it tell.
    whole = [step for step in steps if len(steps) > 1 and _tensors(step) == _tensors(steps[0])]
    sizes = [[message.bytes for message in step] for step in whole]
    return [[size for size in step if size is not None] for step in sizes if None not in step]


def _steps(messages: list[Message]) -> list[list[Message]]:
    steps: list[list[Message]] = []
    for message in messages:
        if not steps or _tensors(steps[-1]) & message.sizes.keys():
            steps.append([])
        steps[-1].append(message)
    return steps


def _tensors(step: list[Message]) -> set[str]:
    return {name for message in step for name in message.sizes}


def _messages(data: bytes) -> list[Message]:
    """Messages in the order in which they were sent."""
    names: dict[object, str] = {}
    open_: dict[str, list[str]] = {}
    latest: dict[str, Message] = {}
    found: list[Message] = []
    ended = True
    for event in _events(data.decode(errors="replace")):
        place, kind = event.get("pid"), event.get("ph")
        if kind == "M" and "name" in _arguments(event):
            names[place] = str(_arguments(event)["name"])
        name = names.get(place, "")
        if not name or f".{OURS}" in f".{name}":
            continue
        stack = open_.setdefault(name, [])
        if kind == "B":
            stack.append(str(event.get("name")))
            if stack[0] == OPERATION and stack[-1].endswith(REDUCTION):
                if ended:
                    found.append(Message())
                    ended = False
                found[-1].sizes[name] = None
                latest[name] = found[-1]
        elif kind == "E" and stack:
            activity = stack.pop()
            ended = ended or (bool(stack) and activity.endswith(REDUCTION))
            if not stack and activity == OPERATION and name in latest:
                latest.pop(name).sizes[name] = _size(_arguments(event))
    return found


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Objects of an array that may be cut off anywhere."""
    decoder, place = json.JSONDecoder(), 0
    while True:
        between = BETWEEN.match(text, place)
        try:
            event, place = decoder.raw_decode(text, between.end() if between else place)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _size(arguments: dict[str, Any]) -> int | None:
    """Bytes of a tensor from `"dtype": "float32", "shape": "[64, 3]"`."""
    try:
        return SIZES[arguments["dtype"]] * int(math.prod(json.loads(arguments["shape"])))
    except (KeyError, TypeError, ValueError):
        return None
