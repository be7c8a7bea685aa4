"""An emulated accelerator: layers that sleep for as long as the real ones compute, and real gradients of their sizes.

So the CPU stays free for communication, as on a host with GPUs. Layers sleep to absolute deadlines from the step's
start, as kernels follow each other in a stream: a late one does not delay those behind it. Gradients lie in memory that
is allocated once. Seconds throughout.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Generator, Tensor, nn

from benches.errors import UserError
from benches.spec import Count, Frozen, Name, NotNegative, Positive, Whole, build

PROFILES = Path(__file__).resolve().parent.parent.parent / "conf" / "model" / "profiles"
MARK_EVERY = 1 << 16
"""Elements from one that carries a batch's value to the next within a parameter; the first does too."""
PR_SET_TIMERSLACK = 29


class Layer(Frozen, frozen=True, kw_only=True):
    """A module with parameters of its own, and what is computed between it and the one before."""

    name: Name
    forward_s: NotNegative
    backward_s: NotNegative
    """Up to the moment when its last gradient is ready."""
    ready: Whole
    """Place in the order in which layers' gradients become ready; 0 comes first."""
    parameters: tuple[Count, ...]
    """Elements of each, as registered."""


class Profile(Frozen, frozen=True, kw_only=True):
    """A model's layers and times, and where they come from."""

    model: Name
    device: str
    """Name of the processor that they were measured on."""
    torch: str
    """Version."""
    per_rank_batch: Count
    threads: Count
    """Of torch, where it ran on a CPU."""
    steps: Count
    """Layers share a step's time as the medians of their own over so many steps do."""
    measured_step_s: Positive
    """Mean time of a whole step there, update included."""
    step_s: Positive
    """What the times below add up to: equal to `measured_step_s`, or what they were scaled to."""
    update_s: NotNegative
    """Of it: `zero_grad` and the optimizer's step."""
    bytes_per_element: Count
    layers: tuple[Layer, ...]
    """As the model registers them."""

    @property
    def gradient_bytes(self) -> int:
        return self.bytes_per_element * sum(sum(layer.parameters) for layer in self.layers)


def load_profile(name: str) -> Profile:
    """A profile of conf/model/profiles by name, or any by its path. Raises UserError."""
    import yaml

    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    try:
        profile = build(Profile, yaml.safe_load(path.read_text()))
    except FileNotFoundError as error:
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.yaml")))
        raise UserError(f"model.kwargs.profile={name}: no such profile; choices: {known}, or a path") from error
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UserError(f"model.kwargs.profile={name}: {' '.join(str(error).split())}") from error
    if sorted(layer.ready for layer in profile.layers) != list(range(len(profile.layers))) or not profile.layers:
        raise UserError(f"model.kwargs.profile={name}: `ready` must number its layers from 0, each once")
    return profile


def emulated(profile: str, step_s: float | None = None) -> nn.Module:
    """The model of a profile, its step scaled to `step_s`; null: as the profile has it. Raises UserError."""
    if step_s is not None and not step_s > 0:
        raise UserError(f"model.kwargs.step_s={step_s:g}: takes seconds above 0, or null for the profile's own")
    return EmulatedModel(load_profile(profile), step_s)


def batch(generator: Generator, per_rank_batch: int, device: torch.device) -> Tensor:
    """Random numbers (per_rank_batch,), float32: their mean tells one rank's gradients from another's."""
    return torch.rand(per_rank_batch, generator=generator).to(device)


def find(model: nn.Module) -> EmulatedModel | None:
    """The emulated model in a wrapped one; None where it is a real model."""
    return next((module for module in model.modules() if isinstance(module, EmulatedModel)), None)


class EmulatedModel(nn.Module):
    """Called with a batch it returns the loss, after the time that the forward pass takes."""

    def __init__(self, profile: Profile, step_s: float | None = None) -> None:
        super().__init__()
        scale = (step_s or profile.step_s) / profile.step_s
        self.profile = profile
        self.update_s = profile.update_s * scale
        """What the real optimizer takes; a stand-in for it sleeps so long."""
        self.layers = nn.ModuleList(map(_parameters, profile.layers))
        # Gradients become ready in the reverse of the order in which autograd saw the layers.
        self._order = sorted(range(len(profile.layers)), key=lambda k: -profile.layers[k].ready)
        self._forward_at = _deadlines([profile.layers[k].forward_s * scale for k in self._order])
        backward = _deadlines([profile.layers[k].backward_s * scale for k in reversed(self._order)])
        self._backward_at = [self._forward_at[-1] + at for at in backward]
        self._gradients: list[Gradients] = []
        self._start = 0.0
        self.lateness_s: list[float] = []
        """By step since the list was last cleared: how long after its deadline the last gradient was ready."""
        _sleep_precisely()

    @property
    def busy_s(self) -> float:
        """Planned time of forward and backward together."""
        return self._backward_at[-1]

    def forward(self, numbers: Tensor) -> Tensor:
        """Numbers: as `batch` makes them. Returns the loss, a scalar: their mean."""
        store = self._store()
        self._start = time.perf_counter()
        value = numbers.mean()
        for place, k in enumerate(self._order):
            parameters = self.layers[k].parameters()
            value = cast(Tensor, Compute.apply(value, self, store, place, k, *parameters))
        return value

    def _store(self) -> Gradients:
        """Made when first needed, on the device where the model is by then."""
        # A gradient that is there already (accumulation) may lie in the first.
        wanted = 1 + (next(self.parameters()).grad is not None)
        while len(self._gradients) < wanted:
            self._gradients.append(Gradients(self))
        return self._gradients[wanted - 1]

    def wait_forward(self, place: int) -> None:
        """Sleep until the layer at this place of the forward pass is done."""
        sleep_until(self._start + self._forward_at[place])

    def wait_backward(self, place: int) -> None:
        """Sleep until its gradients are ready; after the last, note by how much that was late."""
        number = len(self._order) - 1 - place
        sleep_until(self._start + self._backward_at[number])
        if place == 0:
            self.lateness_s.append(time.perf_counter() - self._start - self._backward_at[-1])


class Gradients:
    """One allocation that holds a gradient of every parameter: zero but for marks, which carry the batch's value.

    Zeros, since libraries put the average in place of the gradient: the average of zeros is zero whatever the rounding.
    """

    def __init__(self, model: EmulatedModel) -> None:
        first = next(model.parameters())
        sizes = [layer.parameters for layer in model.profile.layers]
        ends = list(itertools.accumulate(size for layer in sizes for size in layer))
        self.flat = torch.zeros(ends[-1], device=first.device, dtype=first.dtype)
        starts = iter([0, *ends])
        self.spans = [[(start := next(starts), start + size) for size in layer] for layer in sizes]
        marks = [list(range(*span, MARK_EVERY)) for layer in self.spans for span in layer]
        self.places = torch.tensor([place for some in marks for place in some], device=self.flat.device)
        # Different for each, so that a gradient that lands elsewhere is seen; of order 1, none of them 0.
        self.weights = 1 + torch.arange(len(self.places), device=self.flat.device, dtype=self.flat.dtype) % 7

    def mark(self, value: Tensor) -> None:
        """Put this pass's values in; the memory is used again at every step."""
        self.flat.index_copy_(0, self.places, self.weights * value)

    def of(self, layer: int) -> list[Tensor]:
        """Views of one layer's gradients, fresh ones: autograd takes such over without a copy."""
        return [self.flat[start:end] for start, end in self.spans[layer]]


class Compute(torch.autograd.Function):
    """One layer: sleeps, and hands its gradients back."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, model: EmulatedModel, store: Gradients, place: int, k: int, *_: Tensor
    ) -> Tensor:
        ctx.model, ctx.store, ctx.place, ctx.k = model, store, place, k
        if place == len(model.profile.layers) - 1:
            ctx.value = value.clone()
        model.wait_forward(place)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        model, place = ctx.model, ctx.place
        if place == len(model.profile.layers) - 1:
            ctx.store.mark(ctx.value * upstream[0])
        model.wait_backward(place)
        return (upstream[0], None, None, None, None, *ctx.store.of(ctx.k))


def sleep_until(moment: float) -> None:
    """Of `perf_counter`; returns at once where it has passed."""
    delay = moment - time.perf_counter()
    if delay > 0:
        time.sleep(delay)


def _parameters(layer: Layer) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in layer.parameters)


def _deadlines(seconds: Sequence[float]) -> list[float]:
    return list(itertools.accumulate(seconds))


def _sleep_precisely() -> None:
    """Ask the kernel to wake this thread on time; its own 50 us add up over a hundred layers where each is late."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
