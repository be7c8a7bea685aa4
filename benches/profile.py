"""`ringduel profile model=…`: time a real model layer by layer and write an emulated one. Seconds throughout.

Hooks mark the end of each module's forward pass and the moment at which each gradient is there; a layer's time is that
since the mark before. What comes without a mark of its own (activations, the loss) counts for the next. Layers share
the time of a step as the medians of their times do; the step itself takes the mean, as in a timed block, which has slow
steps too. Processes of one model differ by a few per cent (where their memory lies), so `--runs` profiles several.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from benches import apart
from benches.doctor import first_case
from benches.errors import UserError
from benches.host import cpu_name
from benches.loop import Clock, make_clock, without_collections
from benches.output import print_json
from benches.spec import Case, build, plain
from benches.workloads.data import make_batches
from benches.workloads.emulated import Layer, Profile
from benches.workloads.train import Workload, bare_model, make_optimizer, set_numerics
from launchers.supervise import last_line, output

WARM_UP_STEPS, STEPS = 3, 10
FORWARD, BACKWARD, REST, UPDATE = range(4)
"""What ends at a mark."""
RUN_LIMIT_S = 600.0
"""For one process of several."""
ROOT = "(root)"
"""Stands for a model itself where it has parameters outside its modules; torch gives it no name."""


@dataclass
class Marks:
    """Marks of one step: the clock's, and what ended at each."""

    clock: Clock
    ended: list[tuple[int, int]] = field(default_factory=list)
    """Kind, and number of the layer."""

    def note(self, kind: int, layer: int = 0) -> None:
        self.ended.append((kind, layer))
        self.clock.mark(len(self.ended))

    def begin(self, most: int) -> None:
        """Untimed: make room for a step; then mark its start."""
        self.ended.clear()
        self.clock.reserve(most)
        self.clock.mark(0)

    def seconds(self) -> dict[tuple[int, int], float]:
        """Time by kind and layer; several marks of one add up. Waits for the device."""
        at = self.clock.seconds(len(self.ended) + 1)
        total: dict[tuple[int, int], float] = {}
        for key, before, after in zip(self.ended, at, at[1:], strict=False):
            total[key] = total.get(key, 0.0) + after - before
        return total


def profile_command(words: list[str], options: argparse.Namespace) -> int:
    """Profile the model that `words` name; write it to `options.out`, or print it."""
    from benches.cli import DONE

    if options.runs < 1:
        raise UserError(f"--runs {options.runs}: takes 1 or more")
    if options.runs > 1:
        found = merged([measure_apart(words, options.config_dir) for _ in range(options.runs)])
    else:
        # The folder that one calls from is a rank's too, last, for one's own model.
        sys.path.append(str(Path.cwd()))
        found = measure(first_case(words, options.config_dir))
    profile = scaled(found, options.step_s)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text_of(profile))
    if options.json:
        print_json({"profile": plain(profile), "path": str(options.out) if options.out else None})
    elif not options.out:
        print(text_of(profile), end="")
    return DONE


def measure_apart(words: list[str], config_dir: Path | None) -> Profile:
    """The same in a fresh process. Raises UserError."""
    own = ["--config-dir", str(config_dir)] if config_dir else []
    code = "import benches.cli as c; sys.exit(c.main())"
    status, text = output(apart.words(None, code, "profile", "--json", *own, *words), limit_s=RUN_LIMIT_S)
    # Warnings may stand before the object and behind it.
    start = text.find("{\n")
    if status != 0 or start < 0:
        raise UserError(last_line(text).removeprefix("ringduel: "))
    found: Profile = build(Profile, json.JSONDecoder().raw_decode(text, start)[0]["profile"])
    return found


def merged(profiles: Sequence[Profile]) -> Profile:
    """One profile of several of a model: its step takes the mean of theirs, shared out by the layers' medians."""
    layers = tuple(
        msgspec.structs.replace(
            same[0],
            forward_s=statistics.median(layer.forward_s for layer in same),
            backward_s=statistics.median(layer.backward_s for layer in same),
        )
        for same in zip(*(profile.layers for profile in profiles), strict=True)
    )
    update_s = statistics.median(profile.update_s for profile in profiles)
    measured_s = statistics.fmean(profile.measured_step_s for profile in profiles)
    found = msgspec.structs.replace(
        profiles[0],
        steps=sum(profile.steps for profile in profiles),
        measured_step_s=measured_s,
        step_s=_sum(layers) + update_s,
        update_s=update_s,
        layers=layers,
    )
    return _times(found, measured_s / found.step_s)


def measure(case: Case, steps: int = STEPS) -> Profile:
    """Run the case's bare model in this process, on its device. Raises UserError where no gradient comes."""
    set_numerics(case)
    device = torch.device(case.device)
    model, workload = bare_model(case, device), Workload(case, device)
    optimizer = make_optimizer(list(model.parameters()), case.optimizer)
    batches = make_batches(case, 0, 1, device)
    owners = {name or ROOT: one for name, one in model.named_modules() if list(one.parameters(recurse=False))}
    marks = Marks(make_clock(device))
    seen: list[dict[tuple[int, int], float]] = []
    # As in a timed block: batches lie ready, and no garbage is collected.
    batches.prepare(0, WARM_UP_STEPS + steps)
    with hooked(model, list(owners.values()), marks), without_collections():
        for step in range(WARM_UP_STEPS + steps):
            marks.begin(8 * len(list(model.modules())) + 2 * len(list(model.parameters())) + 8)
            optimizer.zero_grad(set_to_none=True)
            marks.note(UPDATE)
            workload.backward(model, workload.arrange(batches(step)))
            marks.note(REST)
            optimizer.step()
            marks.note(UPDATE)
            seen.append(marks.seconds())
    return _profile(case, owners, _ready(marks.ended), seen[WARM_UP_STEPS:])


@contextmanager
def hooked(model: nn.Module, owners: list[nn.Module], marks: Marks) -> Iterator[None]:
    """Marks at the end of each owner's forward pass and at each of its gradients, for as long as the context lasts."""
    handles = []
    met: set[int] = set()
    for number, module in enumerate(owners):
        # Tied parameters belong to the first module that has them; one that has no others gets no mark.
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and id(p) not in met]
        met.update(map(id, own))
        handles += [_on_gradient(parameter, _noting(marks, BACKWARD, number)) for parameter in own]
        if own:
            handles.append(module.register_forward_hook(_noting(marks, FORWARD, number)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def scaled(profile: Profile, step_s: float | None) -> Profile:
    """The profile with all its times in proportion, so that a step takes `step_s`; null: as it is. Raises UserError."""
    if step_s is None:
        return profile
    if not step_s > 0:
        raise UserError(f"--step-s {step_s:g}: takes seconds above 0")
    factor = step_s / profile.step_s
    return _times(profile, factor)


def text_of(profile: Profile) -> str:
    """The profile as YAML, a layer a line; times to 0.1 us."""
    content = plain(profile)
    layers = content.pop("layers")
    head = [f"{key}: {_scalar(value)}" for key, value in content.items()]
    return "\n".join([*head, "layers:", *map(_line, layers), ""])


def _on_gradient(parameter: nn.Parameter, hook: Callable[..., None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _noting(marks: Marks, kind: int, number: int) -> Callable[..., None]:
    return lambda *_: marks.note(kind, number)


def _ready(ended: list[tuple[int, int]]) -> list[int]:
    """Layers in the order in which their last gradients came."""
    last = {layer: place for place, (kind, layer) in enumerate(ended) if kind == BACKWARD}
    return sorted(last, key=last.__getitem__)


def _profile(
    case: Case, owners: dict[str, nn.Module], ready: list[int], seen: list[dict[tuple[int, int], float]]
) -> Profile:
    if not ready:
        raise UserError(f"model={case.model.name}: no gradient came, so there is nothing to emulate")
    names, modules = list(owners), list(owners.values())
    step_s = statistics.fmean(sum(step.values()) for step in seen)

    def median(*keys: tuple[int, int]) -> float:
        return statistics.median(sum(step.get(key, 0.0) for key in keys) for step in seen)

    met: set[int] = set()
    layers = []
    for number in range(len(names)):
        if number in ready:
            layers.append(
                Layer(
                    name=names[number],
                    forward_s=median((FORWARD, number)),
                    # What autograd does after the last gradient counts for that one.
                    backward_s=median((BACKWARD, number), *([(REST, 0)] if number == ready[-1] else [])),
                    ready=ready.index(number),
                    parameters=_own_sizes(modules[number], met),
                )
            )
    profile = Profile(
        model=case.model.name,
        device=torch.cuda.get_device_name() if case.device == "cuda" else cpu_name(),
        torch=str(torch.__version__),
        per_rank_batch=case.data.per_rank_batch,
        threads=case.cluster.threads_per_rank,
        steps=len(seen),
        measured_step_s=step_s,
        step_s=_sum(layers) + median((UPDATE, 0)),
        update_s=median((UPDATE, 0)),
        bytes_per_element=4,
        layers=tuple(layers),
    )
    # Medians of parts do not add up to the mean of the whole.
    return _times(profile, step_s / profile.step_s)


def _own_sizes(module: nn.Module, met: set[int]) -> tuple[int, ...]:
    own = [p for p in module.parameters(recurse=False) if p.grad is not None and id(p) not in met]
    met.update(map(id, own))
    return tuple(p.numel() for p in own)


def _sum(layers: Sequence[Layer]) -> float:
    return sum(layer.forward_s + layer.backward_s for layer in layers)


def _times(profile: Profile, factor: float) -> Profile:
    layers = tuple(
        msgspec.structs.replace(one, forward_s=one.forward_s * factor, backward_s=one.backward_s * factor)
        for one in profile.layers
    )
    return msgspec.structs.replace(
        profile, step_s=profile.step_s * factor, update_s=profile.update_s * factor, layers=layers
    )


def _line(layer: dict[str, Any]) -> str:
    return "- {" + ", ".join(f"{key}: {_scalar(value)}" for key, value in layer.items()) + "}"


def _scalar(value: Any) -> str:
    return f"{value:.7f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
