"""The lint before the launches: what biases is refused by name; what is compared, and what is harmless, is not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from composing import names, study
from hypothesis import given, settings
from hypothesis import strategies as st

from benches import lint
from benches.errors import UserError
from benches.explain import flatten, keys
from benches.spec import Case, Contestant, Study, build

DDP, HOROVOD, CROWD = "study.contestants.ddp", "study.contestants.horovod", "allow_oversubscribe=true"
ALONE = "~study.contestants.horovod"

# Words on the command line: the key that is named, and both values with their contestants.
UNFAIR = {
    (CROWD, f"{DDP}.cluster.threads_per_rank=2"): ("cluster.threads_per_rank", "ddp (2) and horovod (1)"),
    (f"{DDP}.precision=bf16",): ("precision", "ddp (bf16) and horovod (fp32)"),
    (f"{DDP}.data.per_rank_batch=8",): ("data.per_rank_batch", "ddp (8) and horovod (32)"),
    (f"{DDP}.data.global_batch=8",): ("data.per_rank_batch", "ddp (4) and horovod (32)"),
    (f"{DDP}.data=digits",): ("data", "ddp (digits) and horovod (synthetic)"),
    (f"{DDP}.optimizer.name=adam",): ("optimizer.name", "ddp (adam) and horovod (sgd)"),
    (f"{HOROVOD}.optimizer.lr=0.02",): ("optimizer.lr", "ddp (0.01) and horovod (0.02)"),
    (f"{DDP}.seed=2",): ("seed", "ddp (2) and horovod (1)"),
    (f"{DDP}.model=mlp",): ("model", "ddp (mlp) and horovod (resnet18)"),
    (f"{DDP}.model.kwargs.groups=2",): ("model.kwargs.groups", "ddp (2) and horovod (null)"),
    (f"{DDP}.channels_last=true",): ("channels_last", "ddp (true) and horovod (false)"),
    (f"{DDP}.compile=true",): ("compile", "ddp (true) and horovod (false)"),
    (f"{DDP}.accumulation_steps=2",): ("accumulation_steps", "ddp (2) and horovod (1)"),
    (f"{DDP}.cluster.env.NCCL_ALGO=Ring",): ("cluster.env.NCCL_ALGO", "ddp (Ring) and horovod (null)"),
    (f"{DDP}.ddp.broadcast_buffers=true",): ("ddp.broadcast_buffers", "ddp (true) and horovod (false)"),
    (f"{DDP}.ddp.comm_hook=fp16",): ("ddp.comm_hook", "ddp (fp16) and horovod (null)"),
    (f"{HOROVOD}.horovod.compression=fp16",): ("ddp.comm_hook", "ddp (null) and horovod (fp16)"),
    ("transport=mpi", f"{DDP}.cluster.mpi_yield_when_idle=false"): (
        "cluster.mpi_yield_when_idle",
        "ddp (false) and horovod (true)",
    ),
    # Swept by both, and across engines two things would differ at once.
    (f"{DDP}.precision=[fp32,bf16]", f"{HOROVOD}.precision=[fp32,bf16]"): (
        "precision",
        "ddp-fp32 (fp32) and horovod-bf16 (bf16)",
    ),
    # One sub-grid sweeps what another contestant of the engine fixes.
    (ALONE, f"{DDP}.seed=[1,2]", "study.contestants.b.engine=ddp", "study.contestants.b.seed=3"): (
        "seed",
        "ddp-seed=1 (1) and b (3)",
    ),
}

FAIR = {
    (): ["ddp", "horovod"],
    (f"{DDP}.transport=mpi", f"{HOROVOD}.transport=[gloo,mpi]"): ["ddp", "horovod-gloo", "horovod-mpi"],
    (f"{DDP}.ddp.bucket_cap_mb=1", f"{HOROVOD}.horovod.cycle_time_ms=5"): ["ddp", "horovod"],
    (f"{DDP}.block_steps=7", f"{DDP}.limit_s=9", f"{HOROVOD}.warmup_steps=12"): ["ddp", "horovod"],
    (ALONE, f"{DDP}.precision=[fp32,bf16]"): ["ddp-fp32", "ddp-bf16"],
    (ALONE, f"{DDP}.model=[mlp,digits,resnet18_64]"): ["ddp-mlp", "ddp-digits", "ddp-resnet18_64"],
    (ALONE, f"{DDP}.data.global_batch=[32,64]"): ["ddp-global_batch=32", "ddp-global_batch=64"],
    ("study.axes.optimizer.lr=[0.1,0.2]",): ["ddp", "horovod"] * 2,
    (f"{DDP}.ddp.comm_hook=[null,fp16]",): ["ddp-comm_hook=null", "ddp-comm_hook=fp16", "horovod"],
    (f"{DDP}.ddp.comm_hook=fp16", f"{HOROVOD}.horovod.compression=fp16"): ["ddp", "horovod"],
    ("ddp.broadcast_buffers=true", "engine=ddp"): ["ddp"],
    (f"{DDP}.python=/opt/python",): ["ddp", "horovod"],
    # Other world sizes do not meet, whatever differs.
    (f"{DDP}.cluster.ranks_per_node=1", f"{DDP}.seed=7"): ["ddp", "horovod"],
}


@pytest.mark.parametrize("words", UNFAIR, ids="  ".join)
def test_what_biases_is_refused_in_one_line_that_can_be_obeyed(words: tuple[str, ...]) -> None:
    key, pair = UNFAIR[words]
    with pytest.raises(UserError) as caught:
        study(*words)
    text = str(caught.value)
    assert text.startswith(f"{key}: contestants {pair} differ in it")
    assert "\n" not in text
    allowed = re.search(r"study\.allow_unfair=\[\S+\]$", text)
    assert allowed
    found = study(*words, allowed[0])
    assert [one.key for one in lint.differences(found) if one.biases] == [key]


@pytest.mark.parametrize("words", FAIR, ids="  ".join)
def test_what_is_compared_or_harmless_is_not_refused(words: tuple[str, ...]) -> None:
    found = study(*words)
    assert names(found) == FAIR[words]
    assert not any(one.biases for one in lint.differences(found))


def test_harmless_differences_are_found_all_the_same() -> None:
    found = list(lint.differences(study(f"{DDP}.block_steps=7", f"{HOROVOD}.warmup_steps=12")))
    assert {one.key: one.values for one in found} == {
        "block_steps": {"ddp": 7, "horovod": 20},
        "warmup_steps": {"ddp": 10, "horovod": 12},
    }


def test_versions_are_compared_and_named() -> None:
    (found,) = lint.differences(study(f"{DDP}.python=/opt/python"))
    assert (found.key, found.values) == ("python", {"ddp": "/opt/python", "horovod": None})


def test_a_key_above_allows_those_below_it() -> None:
    assert study(f"{DDP}.cluster.env.A=1", f"{DDP}.cluster.env.B=1", "study.allow_unfair=[cluster.env]")
    with pytest.raises(UserError, match=r"cluster\.env\.B"):
        study(f"{DDP}.cluster.env.A=1", f"{DDP}.cluster.env.B=1", "study.allow_unfair=[cluster.env.A]")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("study.allow_unfair=[sed]", "study.allow_unfair=[sed]: unknown key; nearest: seed"),
        ("study.allow_unfair=seed", "study.allow_unfair=seed: takes a list of keys, such as [optimizer.lr]"),
        ("study.allow_unfair=[1]", "study.allow_unfair=[1]: takes a list of keys, such as [optimizer.lr]"),
        ("study.axes.study.allow_unfair=[seed]", None),
    ],
)
def test_keys_to_allow_are_checked(words: str, line: str | None) -> None:
    with pytest.raises(UserError) as caught:
        study(words)
    assert line is None or str(caught.value) == line


def test_every_key_of_a_case_is_judged() -> None:
    """Only what makes a contestant what it is goes past the lint: a new key of Case biases until someone says else."""
    case = study("engine=ddp", "transport=mpi").contestants[0].case
    free = {"model.kwargs", "model.batch_kwargs", "cluster.env", "cluster.slow_node", "data.global_batch"}
    known = {lint.BY_GROUP.get(key, key) for key in flatten(keys(), "")} - free
    asked = ("cluster.slurm", "cluster.kubernetes")  # once, for the study as a whole
    own = {key for key in known if key.split(".")[0] in (*lint.OWN, "study", "results") or key.startswith(asked)}
    judged = {key for key in lint.settings(case) if not key.startswith(("model.kwargs.", "model.batch_kwargs."))}
    assert judged - set(lint.SHARED) == known - own
    assert set(lint.HARMLESS) | {lint.POLLING} <= known


def made(engine: str, transport: str, name: str, shared: dict[str, Any], own: dict[str, Any]) -> Contestant:
    content = {**shared, "engine": engine, "transport": transport, engine: own}
    return Contestant(name=name, case=build(Case, content))


OWN_DDP = st.fixed_dictionaries(
    {
        "bucket_cap_mb": st.sampled_from([None, 1, 25]),
        "static_graph": st.booleans(),
        "gradient_as_bucket_view": st.booleans(),
    }
)
OWN_HOROVOD = st.fixed_dictionaries(
    {
        "fusion_threshold_mb": st.floats(0, 256),
        "cycle_time_ms": st.floats(0.1, 50),
        "cache_capacity": st.integers(0, 99),
    }
)
SHARED = st.fixed_dictionaries(
    {
        "device": st.just("cpu"),
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "compile": st.booleans(),
        "channels_last": st.booleans(),
        "seed": st.integers(0, 2**31),
        "accumulation_steps": st.integers(1, 4),
        "warmup_steps": st.integers(10, 40),
        "block_steps": st.integers(1, 40),
        "model": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["mlp", "own"]),
                "factory": st.just("a:b"),
                "batch": st.just("a:c"),
                "kwargs": st.dictionaries(st.sampled_from("ab"), st.none() | st.integers() | st.lists(st.integers())),
            }
        ),
        "data": st.fixed_dictionaries({"per_rank_batch": st.integers(1, 64), "workers": st.integers(0, 4)}),
        "optimizer": st.fixed_dictionaries(
            {"name": st.sampled_from(["sgd", "adam", "adamw"]), "lr": st.floats(1e-5, 1), "fused": st.booleans()}
        ),
        "cluster": st.fixed_dictionaries(
            {
                "ranks_per_node": st.integers(1, 8),
                "threads_per_rank": st.integers(1, 8),
                "mpi_yield_when_idle": st.booleans(),
                "env": st.dictionaries(st.sampled_from(["NCCL_ALGO", "UCX_TLS"]), st.text(max_size=3)),
            }
        ),
    }
)


@settings(max_examples=200, deadline=None)
@given(shared=SHARED, ddp=OWN_DDP, horovod=OWN_HOROVOD, other=OWN_HOROVOD, transport=st.sampled_from(["gloo", "mpi"]))
def test_fair_settings_raise_no_alarm(
    shared: dict[str, Any], ddp: dict[str, Any], horovod: dict[str, Any], other: dict[str, Any], transport: str
) -> None:
    """Whatever the contestants share, and whatever their engines' own settings are."""
    contestants = (
        made("ddp", "gloo", "ddp", shared, ddp),
        made("horovod", transport, "horovod", shared, horovod),
        made("horovod", "mpi", "other", shared, other),
    )
    found = Study(name="fair", contestants=contestants)
    lint.refuse(found)
    assert list(lint.differences(found)) == []
