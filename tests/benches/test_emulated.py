"""The emulated accelerator: it takes the time, hands back the gradients, copies nothing; and the profile of a model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from workload_cases import case

from benches import profile as profiling
from benches.errors import UserError
from benches.spec import build, plain
from benches.workloads import emulated
from benches.workloads.emulated import EmulatedModel, Layer, Profile, load_profile

BATCH = torch.tensor([0.25, 0.75])


def made(layers: tuple[Layer, ...] | None = None, **changes: Any) -> Profile:
    """Two layers whose gradients come in the order in which they are registered, not in the reverse."""
    layers = layers or (
        Layer(name="a", forward_s=0.01, backward_s=0.03, ready=0, parameters=(70_000, 3)),
        Layer(name="b.c", forward_s=0.02, backward_s=0.04, ready=1, parameters=(5,)),
    )
    content = {
        "model": "m",
        "device": "d",
        "torch": "2",
        "per_rank_batch": 2,
        "threads": 1,
        "steps": 1,
        "measured_step_s": 1.0,
        "step_s": 0.1,
        "update_s": 0.0,
        "bytes_per_element": 4,
        "layers": layers,
    }
    return Profile(**{**content, **changes})


class Clock:
    """Time that passes in sleep alone."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(emulated, "time", clock)
    return clock


def test_a_step_takes_its_time_and_gradients_come_in_their_order(clock: Clock) -> None:
    model = EmulatedModel(made())
    when: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: when.update({name: clock.now - 100}))
    loss = model(BATCH)
    assert clock.now - 100 == pytest.approx(0.03)
    loss.backward()
    assert list(when) == ["layers.0.0", "layers.0.1", "layers.1.0"]
    assert list(when.values()) == pytest.approx([0.06, 0.06, 0.1])
    assert model.lateness_s == pytest.approx([0])


def test_layers_sleep_to_deadlines_from_the_start(clock: Clock) -> None:
    """A delay within the step is made up for, as in a full stream; what is left at its end is lateness."""
    model = EmulatedModel(made())
    for delay in (0.03, 0.1, 0.0):
        loss = model(BATCH)
        clock.sleep(delay)
        loss.backward()
    assert model.lateness_s == pytest.approx([0, 0.03, 0])
    assert clock.now - 100 == pytest.approx(0.1 + 0.13 + 0.1)


def test_a_step_can_be_scaled() -> None:
    model = EmulatedModel(made(step_s=0.2, update_s=0.1), step_s=0.02)
    assert model.update_s == pytest.approx(0.01)
    assert model.busy_s == pytest.approx(0.01)


def test_gradients_lie_in_memory_allocated_once() -> None:
    model = EmulatedModel(made())
    places = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(BATCH).backward()
        places.append([p.grad.data_ptr() for p in model.parameters() if p.grad is not None])
    assert places[0] == places[1] == places[2]
    flat = model._gradients[0].flat
    assert places[0] == [flat.data_ptr(), flat.data_ptr() + 4 * 70_000, flat.data_ptr() + 4 * 70_003]
    assert len(model._gradients) == 1


def test_gradients_carry_the_batch_and_survive_an_average_in_their_place() -> None:
    model = EmulatedModel(made())
    seen = []
    for values in (BATCH, 3 * BATCH, BATCH):
        model.zero_grad(set_to_none=True)
        model(values).backward()
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(3).mul_(3.0001)
    assert all(torch.equal(one, other) for one, other in zip(seen[0], seen[2], strict=True))
    assert all(torch.equal(3 * one, other) for one, other in zip(seen[0], seen[1], strict=True))
    marks = seen[0][0].nonzero().flatten().tolist()
    assert marks == [0, emulated.MARK_EVERY]
    assert all(gradient[0] != 0 for gradient in seen[0])
    # A gradient that landed in another's place would be seen.
    assert len({float(gradient[0]) for gradient in seen[0]}) == 3


def test_passes_add_up_and_a_scaled_loss_scales_gradients() -> None:
    model = EmulatedModel(made())
    model(BATCH).backward()
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    for _ in range(3):
        (model(BATCH) / 2).backward()
    total = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(1.5 * one, sum_) for one, sum_ in zip(once, total, strict=True))


def test_an_emulated_model_is_found_within_a_wrapper() -> None:
    model = EmulatedModel(made())
    assert emulated.find(nn.ModuleDict({"module": model})) is model
    assert emulated.find(nn.Linear(1, 1)) is None


def test_a_profile_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "it's one.yaml"
    hostile = Layer(name='a: "b", {c}', forward_s=1e-7, backward_s=0, ready=0, parameters=(1,))
    for one in (made(), made(layers=(hostile,))):
        path.write_text(profiling.text_of(one))
        assert load_profile(str(path)) == one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "model.kwargs.profile="),
        ("a: [", "model.kwargs.profile="),
        (profiling.text_of(made()).replace("ready: 1", "ready: 0"), "`ready` must number"),
        (profiling.text_of(made()).replace("step_s: 0.1", "step_s: -1"), "step_s"),
        (profiling.text_of(made()).replace("forward_s", "forward_ms"), "forward"),
    ],
)
def test_a_bad_profile_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        emulated.emulated(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_profile_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"^model.kwargs.profile=nothing: no such profile; choices: .*resnet50"):
        emulated.emulated("nothing")
    with pytest.raises(UserError, match=r"^model.kwargs.step_s=0: "):
        emulated.emulated("resnet50", 0)


@pytest.mark.parametrize(("name", "mebibytes"), [("resnet50", 97.5), ("vgg16", 527.8), ("bert_base", 417.7)])
def test_shipped_profiles_have_the_sizes_of_the_models(name: str, mebibytes: float) -> None:
    """Sizes of torchvision's and transformers' own models (25 557 032, 138 357 544, 109 514 298 parameters)."""
    found = load_profile(name)
    assert found.gradient_bytes / 2**20 == pytest.approx(mebibytes, abs=0.1)
    layers = sum(layer.forward_s + layer.backward_s for layer in found.layers)
    assert layers + found.update_s == pytest.approx(found.step_s, rel=1e-3)


class Slow(nn.Module):
    """Two layers that take known times, used in the reverse of the order in which they are registered; one tied."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first, self.unused = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Wait.apply(self.first(x), 0.004, 0.02)
        x = self.tied(x)
        x = Wait.apply(self.second(x), 0.008, 0.01)
        return x.square().mean()


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


SLOW = {
    "factory": f"{__name__}:Slow",
    "kwargs": {},
    "batch": f"{__name__}:slow_batch",
    "batch_kwargs": {},
    "loss": None,
}


def slow_batch(generator: torch.Generator, per_rank_batch: int, device: torch.device) -> torch.Tensor:
    return torch.randn(per_rank_batch, 8, generator=generator).to(device)


def test_a_model_is_timed_layer_by_layer() -> None:
    found = profiling.measure(case(model=SLOW), steps=5)
    second, first = found.layers
    assert [(layer.name, layer.ready, layer.parameters) for layer in found.layers] == [
        ("second", 0, (64, 8)),
        ("first", 1, (64,)),
    ]
    # The wait behind `first` ends at the mark of `second`; that behind `second` runs before its gradient.
    assert second.forward_s >= 0.004 * 0.9
    assert second.backward_s >= 0.01 * 0.9
    assert first.backward_s >= 0.02 * 0.9
    assert found.step_s == found.measured_step_s >= 0.04
    parts = sum(layer.forward_s + layer.backward_s for layer in found.layers)
    assert parts + found.update_s == pytest.approx(found.step_s)


def test_the_emulated_model_takes_as_long_as_the_profiled_one() -> None:
    found = profiling.measure(case(model=SLOW), steps=7)
    model = EmulatedModel(found)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        model(BATCH).backward()
        seconds.append(time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
    # The quickest: a busy host makes steps late.
    assert min(seconds) == pytest.approx(model.busy_s, rel=0.05)


def test_a_profile_can_be_scaled() -> None:
    found = profiling.scaled(made(), 0.05)
    assert (found.step_s, found.measured_step_s) == (0.05, 1.0)
    assert found.layers[1].backward_s == pytest.approx(0.02)
    assert build(Profile, plain(found)) == found
    with pytest.raises(UserError, match=r"^--step-s 0: takes seconds above 0$"):
        profiling.scaled(made(), 0)
