"""Models: every file under conf/model builds what it says, trains by one step, and bad names end in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from workload_cases import MLP, MODELS, composed, model

from benches.errors import UserError
from benches.spec import ModelSpec, build
from benches.workloads import losses
from benches.workloads.batches import masked_tokens
from benches.workloads.models import build_model, loss_function, loss_of_model
from benches.workloads.references import check_model, load

# Trainable parameters as torchvision's and transformers' own model pages give them; ours by hand.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet18_64": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "vgg16": 138_357_544,
    "inception_v3": 27_161_264,
    "gpt2_small": 124_439_808,
    "bert_base": 109_514_298,
    "mlp": (64 + 1) * 256 + 3 * (256 + 1) * 256 + (256 + 1) * 10,
    "emulated": 25_557_032,
    "digits": (9 + 1) * 16 + (9 * 16 + 1) * 32 + (512 + 1) * 128 + (128 + 1) * 10,
}

# The same models, small enough for a test.
SMALL = {
    "resnet18": ["model.batch_kwargs.shape=[3,32,32]"],
    "inception_v3": ["model.kwargs.init_weights=false"],
    "gpt2_small": [
        "model.kwargs.n_layer=1",
        "model.kwargs.n_embd=32",
        "model.kwargs.n_head=2",
        "model.kwargs.vocab_size=99",
        "model.batch_kwargs.length=8",
    ],
    "bert_base": [
        "model.kwargs.num_hidden_layers=1",
        "model.kwargs.hidden_size=32",
        "model.kwargs.num_attention_heads=2",
        "model.kwargs.vocab_size=200",
        "model.batch_kwargs.length=8",
    ],
    "mlp": [],
    "digits": [],
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads that wait for each other on a busy machine take minutes."""
    torch.set_num_threads(1)


def skip_without_extra(spec: ModelSpec) -> None:
    """Skip the test where the extra that brings this model is not installed."""
    if spec.factory.startswith("torchvision"):
        pytest.importorskip("torchvision", reason="torchvision (extra vision) is not installed")
    if spec.factory.startswith("benches.workloads.text"):
        pytest.importorskip("transformers", reason="transformers (extra text) is not installed")


def spec(**fields: object) -> ModelSpec:
    return build(ModelSpec, {**MLP, **fields})


@pytest.mark.parametrize("name", MODELS)
def test_file_names_what_it_builds(name: str) -> None:
    found = model(name)
    skip_without_extra(found)
    assert found.name == name
    check_model(found)
    with torch.device("meta"):
        built = build_model(found, 1)
    assert sum(p.numel() for p in built.parameters() if p.requires_grad) == PARAMETERS[name]
    assert built.training


@pytest.mark.parametrize("name", SMALL)
def test_one_step_reaches_every_parameter(name: str) -> None:
    found = model(name, *SMALL[name])
    skip_without_extra(found)
    built = build_model(found, 1)
    batch = load(found.batch, "model.batch")(
        torch.Generator().manual_seed(1), 2, torch.device("cpu"), **found.batch_kwargs
    )
    loss = loss_function(found)(built, batch)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    assert [name for name, p in built.named_parameters() if p.grad is None] == []


def test_units_of_throughput() -> None:
    assert model("gpt2_small").samples_per_item == 1024
    assert model("gpt2_small", "model.batch_kwargs.length=64").samples_per_item == 64
    assert (model("gpt2_small").sample, model("bert_base").sample, model("vgg16").sample) == (
        "token",
        "sequence",
        "image",
    )
    assert model("bert_base").samples_per_item == 1


def test_digits_brings_its_data_and_a_named_data_wins() -> None:
    assert composed("model=digits")["data"]["name"] == "digits"
    assert composed("model=digits", "data=synthetic")["data"]["name"] == "synthetic"
    assert composed("data=synthetic")["data"]["name"] == "synthetic"


def test_large_models_bring_a_smaller_batch_and_a_typed_one_wins() -> None:
    assert composed("model=gpt2_small")["data"]["per_rank_batch"] == 4
    assert composed("model=gpt2_small", "data.per_rank_batch=2")["data"]["per_rank_batch"] == 2
    assert composed("model=mlp")["data"]["per_rank_batch"] == 32


def test_weights_follow_the_seed_and_leave_the_caller_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (build_model(spec(), seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_auxiliary_scores_count_four_tenths() -> None:
    main, auxiliary, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = cross_entropy(main, y) + 0.4 * cross_entropy(auxiliary, y)
    batch = (torch.zeros(4, 1), y)
    assert torch.equal(losses.classification_with_aux(lambda x: (main, auxiliary), batch), expected)
    assert torch.equal(losses.classification_with_aux(lambda x: main, batch), cross_entropy(main, y))


def test_model_that_returns_its_loss_gets_the_batch_as_it_lies() -> None:
    one = torch.tensor(1.0)
    assert loss_of_model(lambda a, b: a + b, {"a": one, "b": 2 * one}) == 3
    assert loss_of_model(lambda a, b: a + b, (one, one)) == 2
    assert loss_of_model(lambda a: SimpleNamespace(loss=a), one) == 1
    with pytest.raises(UserError, match=r"^model\.loss=null: the model returned a dict without a loss"):
        loss_of_model(lambda a: {"scores": a}, one)


def test_masked_tokens_mask_the_same_number_in_each_row() -> None:
    batch = masked_tokens(torch.Generator().manual_seed(3), 5, torch.device("cpu"), length=40, vocabulary=90)
    masked = batch["input_ids"] == 103
    assert masked.sum(dim=1).tolist() == [6] * 5
    assert torch.equal(masked, batch["labels"] != -100)
    assert batch["labels"][masked].max() < 90
    assert len({tuple(row) for row in masked.tolist()}) > 1


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"factory": "no_such_thing:f"}, "model.factory=no_such_thing:f: no module named no_such_thing; install it"),
        ({"factory": "benches.workloads.models:nope"}, "model.factory=benches.workloads.models:nope: module"),
        ({"factory": "benches.workloads.models:torch"}, "model.factory=benches.workloads.models:torch: is a module"),
        ({"kwargs": {"deep": 3}}, "model.kwargs={'deep': 3}: benches.workloads.models:mlp takes inputs, width, "),
        (
            {"batch_kwargs": {"shape": [1]}},
            "model.batch_kwargs={'shape': [1]}: benches.workloads.batches:images takes shape, ",
        ),
        ({"loss": "benches.workloads.losses:l"}, "model.loss=benches.workloads.losses:l: module"),
    ],
)
def test_check_names_key_and_value_in_one_line(fields: dict[str, object], line: str) -> None:
    with pytest.raises(UserError) as caught:
        check_model(spec(**fields))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_module_that_fails_to_import(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "broken_model.py").write_text("raise RuntimeError('first\\nsecond')\n")
    (tmp_path / "unmet_model.py").write_text("import torchvision_of_tomorrow\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"importing broken_model failed: RuntimeError: first second$"):
        load("broken_model:f", "model.factory")
    with pytest.raises(UserError, match=r"^model\.batch=unmet_model:f: no module named torchvision_of_tomorrow;"):
        load("unmet_model:f", "model.batch")


def test_absent_extra_is_told_with_its_remedy(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    with pytest.raises(UserError, match=r"no module named torchvision; pip install -e '\.\[vision\]'$"):
        load("torchvision:models", "model.factory")


def test_factory_that_fails_or_returns_something_else() -> None:
    with pytest.raises(UserError, match=r"^model\.kwargs=\{'depth': 'x'\}: benches.workloads.models:mlp failed: Type"):
        build_model(spec(kwargs={"depth": "x"}), 1)
    with pytest.raises(UserError, match=r"^model\.factory=builtins:dict: returned a dict, not a torch\.nn\.Module$"):
        build_model(spec(factory="builtins:dict", kwargs={}), 1)
    with pytest.raises(UserError, match=r"^model\.factory=torch\.nn:Flatten: its model has no trainable parameter$"):
        build_model(spec(factory="torch.nn:Flatten", kwargs={}), 1)
