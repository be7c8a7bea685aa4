"""The emulated accelerator: it takes the time, hands back the gradients, copies nothing; and the profile of a model."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from running import launch_case, make_case
from torch import nn
from workload_cases import case, made, model

from benches import cli
from benches import profile as profiling
from benches.errors import UserError
from benches.rank import step_lateness
from benches.spec import OptimizerSpec, build, plain
from benches.workloads import emulated, train
from benches.workloads.emulated import EmulatedModel, Layer, Profile, load_profile

BATCH = torch.tensor([0.25, 0.75])


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
    assert found.step_s == pytest.approx(found.measured_step_s)
    assert found.step_s >= 0.04
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
    # Never quicker than planned; how late steps come is a matter of the host.
    assert min(seconds) >= model.busy_s * 0.999


def test_a_profile_can_be_scaled() -> None:
    found = profiling.scaled(made(), 0.05)
    assert (found.step_s, found.measured_step_s) == (0.05, 1.0)
    assert found.layers[1].backward_s == pytest.approx(0.02)
    assert build(Profile, plain(found)) == found
    with pytest.raises(UserError, match=r"^--step-s 0: takes seconds above 0$"):
        profiling.scaled(made(), 0)


def test_the_optimizer_takes_the_time_of_the_real_one_and_updates_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "time", clock)
    model = EmulatedModel(made(update_s=0.02))
    optimizer = train.optimizer_of(model, OptimizerSpec(lr=0.5))
    model(BATCH).backward()
    before = clock.now
    optimizer.step()
    assert clock.now - before == pytest.approx(0.02)
    assert all(not parameter.any() for parameter in model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.zero_grad()
    assert {parameter.grad for parameter in model.parameters()} == {None}
    # As Horovod makes its own of it: a subclass, given the parameter groups alone.
    again = type("NoUpdate", (train.NoUpdate,), {})(optimizer.param_groups)
    again.step()
    assert clock.now - before == pytest.approx(0.04)
    assert isinstance(train.optimizer_of(nn.Linear(1, 1), OptimizerSpec()), torch.optim.SGD)


def test_lateness_is_that_of_the_timed_steps_all_their_passes_together() -> None:
    model = EmulatedModel(made())
    model.lateness_s = [9.0, 9.0, 0.25, 0.5, 1.0, 2.0]
    assert step_lateness(model, 2, 2) == [0.75, 3.0]
    assert model.lateness_s == []
    model.lateness_s = [9.0, 0.25, 0.5]
    assert step_lateness(model, 2, 1) == [0.25, 0.5]


CELLS = [
    pytest.param(None, id="local"),
    pytest.param("ddp", id="ddp"),
    pytest.param("horovod", id="horovod", marks=pytest.mark.horovod),
]


@pytest.mark.parametrize("engine", CELLS)
def test_it_passes_the_gate_and_its_record_says_how_late_it_was(
    engine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(profiling.text_of(made(update_s=0.01)))
    spec = plain(model("emulated", f"model.kwargs.profile={path}", "model.kwargs.step_s=0.05"))
    shape = (engine, "gloo", 2) if engine else ("local", None, 1)
    header, _ = launch_case(make_case(*shape, model=spec), tmp_path / "results", monkeypatch, rounds=2)
    assert (header.status, header.reason) == ("ok", None)
    assert header.provenance["site"] == {}
    late = [rank["lateness_s"] for rank in header.provenance["ranks"]]
    assert [len(of_rank) for of_rank in late] == [2 * header.case.block_steps] * shape[2]
    assert all(-0.01 < one < 5 for of_rank in late for one in of_rank)
    assert all(load.wall_s >= 0.05 * header.case.block_steps for load in header.load[0])


def test_ones_own_model_is_profiled_and_nothing_of_ours_shadowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_net.py").write_text(
        "import torch\ndef net(): return torch.nn.Linear(3, 1)\n"
        "def loss(model, batch): return model(batch).sum()\n"
        "def batch(generator, per_rank_batch, device): return torch.rand(per_rank_batch, 3, generator=generator)\n"
    )
    for shadow in ("analysis", "benches", "launchers"):
        (tmp_path / f"{shadow}.py").write_text("raise RuntimeError('a shadow')\n")
    monkeypatch.chdir(tmp_path)
    own = [f"model.{key}=own_net:{name}" for key, name in (("factory", "net"), ("batch", "batch"), ("loss", "loss"))]
    words = ["model=custom", *own, "model.sample=image", "engine=ddp", "device=cpu"]
    (apart,) = profiling.measure_apart(words, None).layers
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.main(["profile", "--json", *words]) == cli.DONE
    (layer,) = json.loads(capsys.readouterr().out)["profile"]["layers"]
    assert tuple(layer["parameters"]) == apart.parameters == (3, 1)


def test_a_profile_is_read_among_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"profile": plain(made())}, indent=1)
    monkeypatch.setattr(profiling, "output", lambda *_, **__: (0, f"{{hello}}\n{said}\n[W1202] Warning: leaked\n"))
    assert profiling.measure_apart([], None) == made()
    monkeypatch.setattr(profiling, "output", lambda *_, **__: (0, "hello\n"))
    with pytest.raises(UserError, match=r"^hello$"):
        profiling.measure_apart([], None)


def test_the_command_line_writes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "mlp.yaml"
    words = ["profile", "model=mlp", "engine=ddp", "device=cpu", "--out", str(path), "--step-s", "0.5", "--json"]
    assert cli.main(words) == cli.DONE
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(path)
    assert load_profile(str(path)).step_s == pytest.approx(0.5) == said["profile"]["step_s"]
    assert cli.main([*words[:-3], "--step-s", "-1"]) == cli.MISTAKE
