"""Each mistake in the configuration ends in one line: the key, the value, and the choices or the remedy."""

from __future__ import annotations

import pytest
from composing import resolved

from benches import knobs
from benches.conffiles import CONF
from benches.errors import UserError

MODELS = (
    "bert_base, custom, digits, emulated, gpt2_small, inception_v3, mlp, resnet101, resnet18, resnet18_64, resnet50, "
    "vgg16"
)
EXPERIMENTS = ", ".join(sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
LOCAL = "study.contestants.base.engine=local"

REFUSED = {
    # Unknown choices.
    ("engine=foo",): "engine=foo: choices: local, ddp, horovod, null",
    ("transport=foo",): "transport=foo: choices: gloo, mpi, nccl, null",
    ("device=gpu",): "device=gpu: choices: auto, cpu, cuda",
    ("precision=fp99",): "precision=fp99: choices: fp32, bf16, fp16",
    ("model=resnt18",): f"model=resnt18: choices: {MODELS}",
    ("data=nope",): "data=nope: choices: digits, imagefolder, synthetic",
    ("cluster=nope",): "cluster=nope: choices: hosts, kubernetes, local, slurm, virtual",
    ("experiment=nope",): f"experiment=nope: choices: {EXPERIMENTS}",
    ("study.axes.model=[mlp,nope]",): f"study.axes.model=nope: choices: {MODELS}",
    ("study.contestants.ddp.model=nope",): f"study.contestants.ddp.model=nope: choices: {MODELS}",
    # Unknown keys.
    ("bucket_cap_mb=1",): "bucket_cap_mb=1: unknown key; nearest: ddp.bucket_cap_mb",
    ("ddp.bucket_cap=1",): "ddp.bucket_cap=1: unknown key; nearest: ddp.bucket_cap_mb",
    ("study.lunches=3",): "study.lunches=3: unknown key; nearest: study.launches",
    ("+seeds=3",): "seeds=3: unknown key; nearest: seed",
    ("horovod.x=1",): (
        "horovod.x=1: unknown key; choices: horovod.fusion_threshold_mb, horovod.cycle_time_ms, "
        "horovod.cache_capacity, "
        "horovod.controller, horovod.hierarchical_allreduce, horovod.torus_allreduce, horovod.compression, "
        "horovod.groups, horovod.disable_group_fusion, horovod.gradient_predivide_factor, horovod.num_nccl_streams, "
        "horovod.enable_async_completion, horovod.batch_d2d_memcopies, horovod.autotune, "
        "horovod.autotune_steps_per_sample, horovod.thread_affinity"
    ),
    ("study.axes.ddp.bucket=[1]",): "study.axes.ddp.bucket=1: unknown key; nearest: ddp.bucket_cap_mb",
    ("study.reference.engin=ddp",): "study.reference.engin=ddp: unknown key; nearest: engine",
    ("data=synthetic@other",): None,
    ("model@other=mlp",): None,
    # Wrong types and bounds.
    ("ddp.bucket_cap_mb=-1",): "ddp.bucket_cap_mb=-1: takes a number above 0 and of at most 1048576, or null",
    ("ddp.bucket_cap_mb=big",): "ddp.bucket_cap_mb=big: takes a number above 0 and of at most 1048576, or null",
    ("study.contestants.ddp.ddp.bucket_cap_mb=[1,-1]",): (
        "study.contestants.ddp.ddp.bucket_cap_mb=-1: takes a number above 0 and of at most 1048576, or null"
    ),
    ("horovod.fusion_threshold_mb=-1",): (
        "horovod.fusion_threshold_mb=-1: takes a number of at least 0 and of at most 1048576"
    ),
    ("horovod.cache_capacity=1.5",): (
        "horovod.cache_capacity=1.5: takes a whole number of at least 0 and of at most 2147483647"
    ),
    ("ddp.bucket_cap_mb=1e15",): (
        "ddp.bucket_cap_mb=1000000000000000.0: takes a number above 0 and of at most 1048576, or null"
    ),
    ("horovod.groups=1000000000",): (
        "horovod.groups=1000000000: takes a whole number of at least 1 and of at most 1000000, or null"
    ),
    ("horovod.cycle_time_ms=1e9",): "horovod.cycle_time_ms=1000000000.0: takes a number above 0 and of at most 60000",
    ("block_steps=abc",): "block_steps=abc: takes a whole number of at least 1",
    ("block_steps=0",): "block_steps=0: takes a whole number of at least 1",
    ("block_steps=true",): "block_steps=true: takes a whole number of at least 1",
    ("warmup_steps=9",): "warmup_steps=9: takes a whole number of at least 10",
    ("optimizer.lr=nan",): "optimizer.lr=nan: takes a number above 0",
    ("optimizer.momentum=1",): "optimizer.momentum=1: takes a number of at least 0 and below 1",
    ("limit_s=inf",): "limit_s=inf: takes a number above 0",
    ("ddp.static_graph=1",): "ddp.static_graph=1: takes true or false",
    ("ddp.static_graph=yes",): "ddp.static_graph=yes: takes true or false",
    ("study.launches=0",): "study.launches=0: takes a whole number of at least 1",
    ("cluster.ranks_per_node=0",): "cluster.ranks_per_node=0: takes a whole number of at least 1, or auto",
    ("model.kwargs=5",): "model.kwargs=5: takes a mapping",
    ("ddp=5",): (
        "ddp=5: takes the keys ddp.bucket_cap_mb, ddp.first_bucket_mb, ddp.broadcast_buffers, "
        "ddp.gradient_as_bucket_view, ddp.static_graph, ddp.find_unused_parameters, ddp.comm_hook, ddp.powersgd_rank, "
        "ddp.through_hook, ddp.is_high_priority_stream"
    ),
    ("study.name=../x",): (
        "study.name=../x: takes up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit, "
        "or null"
    ),
    ("study.name='a\n'",): (
        "study.name=a: takes up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit, "
        "or null"
    ),
    # Words that are not settings.
    ("-m",): "-m: there is no multirun; sweep an axis: study.axes.KEY=[VALUE,VALUE]",
    ("--multirun",): "--multirun: there is no multirun; sweep an axis: study.axes.KEY=[VALUE,VALUE]",
    ("--verbose",): "--verbose: unknown option; settings are typed as key=value",
    ("mlp",): "mlp: not a setting; settings are typed as key=value",
    ("model=mlp,resnet18",): (
        "model=mlp,resnet18: commas and sweep functions are not taken here; name an axis: "
        "study.axes.model=[mlp,resnet18]"
    ),
    ("seed=range(1,3)",): (
        "seed=range(1,3): commas and sweep functions are not taken here; name an axis: study.axes.seed=[VALUE,VALUE]"
    ),
    ("data.root=/a=b",): "data.root=/a=b: cannot be read; quote the value: data.root='\"/a=b\"'",
    # A list where there is no axis.
    ("model=[mlp,resnet18]",): "model=[mlp,resnet18]: takes one; several are an axis: study.axes.model=[mlp,resnet18]",
    ("experiment=[ci,smoke]",): f"experiment=[ci,smoke]: choices: {EXPERIMENTS}",
    ("seed=[1,2]",): "seed=[1,2]: takes one; several are an axis: study.axes.seed=[1,2]",
    ("engine=[ddp,horovod]",): (
        "engine=[ddp,horovod]: takes one; others are contestants: study.contestants.NAME.engine=…"
    ),
    # What the chosen file says.
    ("data.name=digits",): "data.name=digits: comes with the file; choose it by data=digits",
    ("model.factory=a:b",): "model.factory=a:b: model=resnet18 has its own; take model=custom",
    ("model=custom",): "model=custom: needs model.factory=package.module:callable model.batch=package.module:callable",
    ("model=custom", "model.factory=a:b"): "model=custom: needs model.batch=package.module:callable",
    ("model=custom", "model.factory=ab", "model.batch=a:b"): "model.factory=ab: takes package.module:callable",
    # Engines, transports and this machine.
    ("transport=nccl",): "transport=nccl: needs device=cuda; choices on cpu: gloo, mpi",
    ("engine=horovod", "transport=nccl"): "transport=nccl: needs device=cuda; choices on cpu: gloo, mpi",
    ("study.contestants.ddp.transport=nccl",): (
        "study.contestants.ddp.transport=nccl: needs device=cuda; choices on cpu: gloo, mpi"
    ),
    ("ddp.through_hook=true", "transport=mpi"): (
        "ddp.through_hook=true: transport=gloo only, not mpi; DDP over MPI always goes through it"
    ),
    ("engine=ddp", "ddp.through_hook=true", "ddp.comm_hook=fp16"): (
        "ddp.comm_hook=fp16: DDP takes one hook, and ours carries the buckets here; take null, "
        "or transport=gloo with ddp.through_hook=false"
    ),
    ("device=cuda",): "device=cuda: torch sees no GPU here; choices: auto, cpu",
    ("experiment=gpu",): "device=cuda: torch sees no GPU here; choices: auto, cpu",
    ("cluster.ranks_per_node=auto",): ("cluster.ranks_per_node=auto: counts GPUs, and device is cpu; name a number"),
    ("cluster.ranks_per_node=4",): (
        "cluster.ranks_per_node=4: 4 ranks x 1 threads need 4 cores, and 2 may be used; fewer ranks, "
        "or allow_oversubscribe=true"
    ),
    ("cluster.threads_per_rank=2",): (
        "cluster.ranks_per_node=2: 2 ranks x 2 threads need 4 cores, and 2 may be used; fewer ranks, "
        "or allow_oversubscribe=true"
    ),
    ("cluster.nodes=2",): "cluster.nodes=2: cluster=local is one node; raise cluster.ranks_per_node",
    ("cluster.link_gbps=10",): "cluster.link_gbps=10: cluster=local shapes no link; takes null",
    ("cluster.slow_node={1: 0.1}",): "cluster.slow_node={1: 0.1}: cluster=local shapes no link; takes {}",
    ("cluster.hosts=[a:8]",): "cluster.hosts=[a:8]: cluster=local is this machine; takes []",
    ("cluster.nodes=auto",): "cluster.nodes=auto: cluster=local is one node; raise cluster.ranks_per_node",
    ("cluster=virtual", "cluster.nodes=auto"): "cluster.nodes=auto: counts cluster.hosts; name a number",
    ("cluster=virtual", "cluster.nic=eth0"): "cluster.nic=eth0: cluster=virtual makes its own nodes; takes null",
    ("cluster=virtual", "cluster.link_gbps=0"): "cluster.link_gbps=0: takes a number above 0, or null",
    ("cluster=virtual", "cluster.slow_node.one=1"): (
        "cluster.slow_node.one=1: one is no number of a node; takes 0, 1, …"
    ),
    ("cluster=virtual", "cluster.nodes=4"): (
        "cluster.nodes=4: 4 ranks x 1 threads need 4 cores, and 2 may be used; fewer ranks, or allow_oversubscribe=true"
    ),
    ("cluster=hosts",): (
        "cluster.hosts=[]: names no host; takes a list such as [a:8,b:8], host name or IPv4 address and slots"
    ),
    ("cluster=hosts", "cluster.hosts=a:8"): "cluster.hosts=a:8: takes a list such as [a:8,b:8]",
    ("cluster=hosts", "cluster.hosts=[a:1,b:1]", "cluster.link_gbps=1"): (
        "cluster.link_gbps=1: cluster=hosts shapes no link; takes null"
    ),
    ("cluster=hosts", "cluster.hosts=[a:1,b:1]", "cluster.nodes=3"): "cluster.nodes=3: cluster.hosts names 2",
    ("cluster=hosts", "cluster.hosts=[a:1,b:1]", "cluster.ranks_per_node=2"): (
        "cluster.ranks_per_node=2: host a has slots for 1"
    ),
    ("cluster=hosts", "cluster.hosts=[a:1]", "cluster.ssh_port=70000"): (
        "cluster.ssh_port=70000: takes a whole number of at least 1 and of at most 65535, or null"
    ),
    # Batches.
    ("data.global_batch=63",): (
        "data.global_batch=63: does not divide by the world size 2 (cluster.nodes=1 x cluster.ranks_per_node=2)"
    ),
    ("data.global_batch=64", "data.per_rank_batch=8"): (
        "data.per_rank_batch=8 and data.global_batch=64: give exactly one"
    ),
    ("data.per_rank_batch=null",): "data.per_rank_batch=null and data.global_batch=null: give exactly one",
    ("study.axes.data.per_rank_batch=[8,16]", "data.global_batch=64"): (
        "data.per_rank_batch=8 and data.global_batch=64: give exactly one"
    ),
    # The grid.
    ("~study.contestants.x",): "~study.contestants.x: is not there; study.contestants holds ddp, horovod",
    ("~model",): "~model: only entries of study.contestants, study.axes, study.reference can be deleted",
    ("study.axes.seed=[]",): (
        "study.axes.seed=[]: an empty sweep leaves nothing to run; name a value, or delete it: ~study.axes.seed"
    ),
    ("study.axes.seed=[1,1.0]",): "study.axes.seed=[1,1]: 1 stands there twice",
    ("study.axes.study.launches=[1,2]",): (
        "study.axes.study.launches=[1,2]: belongs to the study as a whole and cannot vary in it"
    ),
    ("study.axes={cluster.nodes: [1,2]}",): (
        "study.axes.cluster.nodes=[1,2]: cluster.nodes is a dotted key in a mapping; write it nested"
    ),
    ("study.axes=5",): "study.axes=5: takes a mapping",
    ("study.contestants.a/b.engine=ddp",): None,
    ("study.contestants.a.ddp.static_graph=true",): "study.contestants.a.engine=null: choices: local, ddp, horovod",
    ("study.contestants.ddp.engine.x=1",): (
        "study.contestants.ddp.engine.x: study.contestants.ddp.engine is one value, ddp; "
        "delete it first: ~study.contestants.ddp.engine"
    ),
    ("study.contestants.b.engine=ddp",): "study.contestants: b is the same case as ddp; keep one",
    ("study.contestants.ddp.transport=gloo", "study.axes.transport=[gloo]"): (
        "study.axes.transport=[gloo]: contestant ddp sets transport too; keep one"
    ),
    ("study.contestants.ddp.horovod.cycle_time_ms=1",): (
        "study.contestants.ddp.horovod.cycle_time_ms=1: the contestant's engine, ddp, does not use it"
    ),
    (LOCAL, "study.contestants.base.transport=gloo", "cluster.ranks_per_node=1"): (
        "study.contestants.base.transport=gloo: the contestant's engine, local, does not use it"
    ),
    ("engine=ddp", "horovod.cycle_time_ms=2"): "horovod.cycle_time_ms=2: no contestant runs engine horovod",
    ("engine=ddp", "study.axes.horovod.cycle_time_ms=[1,2]"): (
        "study.axes.horovod.cycle_time_ms=[1,2]: no contestant runs engine horovod"
    ),
    ("experiment=smoke", "engine=ddp", "~study.contestants.horovod-mpi", "~study.contestants.horovod-gloo"): (
        "engine=ddp: contestants set it (local, ddp-gloo); override it there: "
        "study.contestants.local.engine=ddp study.contestants.ddp-gloo.engine=ddp"
    ),
    ("experiment=smoke", "study.contestants.ddp-gloo.transport=nccl"): (
        "study.contestants.ddp-gloo.transport=nccl: needs device=cuda; choices on cpu: gloo, mpi"
    ),
    ("~study.contestants",): (
        "study.contestants={}: nothing is left to run; name one: study.contestants.NAME.engine=ENGINE"
    ),
    ("engine=local",): "study.contestants: nothing is left to run; engine local takes cluster.ranks_per_node=1",
    ("study.max_cases=5", "study.axes.seed=[1,2,3]"): ("study.max_cases=5: up to 6 cases; narrow an axis, or raise it"),
    ("study.reference.engine=local",): (
        "study.reference={engine: local}: no contestant matches; ~study.reference drops it"
    ),
    # Variables.
    ("cluster.env.OMP_NUM_THREADS=3",): (
        "cluster.env.OMP_NUM_THREADS=3: gives threads behind the study's back; set cluster.threads_per_rank instead"
    ),
    ("cluster.env.HOROVOD_AUTOTUNE=1",): (
        "cluster.env.HOROVOD_AUTOTUNE=1: sets a knob behind the study's back; set horovod.autotune instead"
    ),
    ("study.axes.cluster.env.HOROVOD_CYCLE_TIME=[1,5]",): (
        "cluster.env.HOROVOD_CYCLE_TIME=1: sets a knob behind the study's back; set horovod.cycle_time_ms instead"
    ),
}


@pytest.mark.parametrize(("words", "line"), REFUSED.items(), ids=[" ".join(words) for words in REFUSED])
def test_a_mistake_is_one_line(words: tuple[str, ...], line: str | None) -> None:
    with pytest.raises(UserError) as caught:
        resolved(*words)
    assert "\n" not in str(caught.value)
    assert line is None or str(caught.value) == line


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "unset it and set horovod.fusion_threshold_mb instead"),
        ("HOROVOD_CONTROLLER", "unset it and set horovod.controller instead"),
        ("OMPI_MCA_mpi_yield_when_idle", "unset it and set cluster.mpi_yield_when_idle instead"),
        ("HOROVOD_AUTOTUNE", "unset it and set horovod.autotune instead"),
        ("HOROVOD_TIMELINE", "unset it"),
    ],
)
def test_a_knob_in_the_shell_is_refused_with_the_key(name: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved("engine=ddp", shell={name: "7"})
    assert str(caught.value) == f"{name}=7 (in your environment): sets a knob behind the study's back; {remedy}"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK"])
def test_a_number_for_every_rank_is_refused(name: str) -> None:
    reason = "each rank would take it for its own number"
    with pytest.raises(UserError) as caught:
        resolved("engine=ddp", shell={name: "0"})
    assert str(caught.value) == f"{name}=0 (in your environment): {reason}; unset it"
    with pytest.raises(UserError) as caught:
        resolved("engine=ddp", f"cluster.env.{name}='0'")
    assert str(caught.value) == f"cluster.env.{name}=0: {reason}; leave it out"


def test_a_secret_in_the_configuration_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError) as caught:
        resolved("engine=ddp", "+cluster.env.HF_TOKEN=hf_abc")
    assert str(caught.value).startswith("cluster.env.HF_TOKEN: a secret would stand in every record and process list; ")
    assert "hf_abc" not in str(caught.value)
    resolved("engine=ddp", "+cluster.env.NCCL_IB_PKEY=3")


def test_what_changes_speed_reaches_all_ranks_and_secrets_no_command_line() -> None:
    shell = {"LD_LIBRARY_PATH": "/lib", "NCCL_IB_PKEY": "3", "TORCH_NCCL_X": "1", "HOME": "/h", "AWS_SECRET_KEY": "s"}
    shell |= {"my.var": "1"}
    assert knobs.carried(shell) == {"LD_LIBRARY_PATH": "/lib", "NCCL_IB_PKEY": "3", "TORCH_NCCL_X": "1"}
    assert knobs.carried({"TORCH_HUB_TOKEN": "s"}) == {}, "not in a record, either"
    assert knobs.hidden(shell) == ("AWS_SECRET_KEY", "my.var")
    assert knobs.hidden({"LOGIN": "s", "RINGDUEL_SECRETS": "LOGIN,OTHER"}) == ("LOGIN", "RINGDUEL_SECRETS")


def test_more_ranks_than_gpus() -> None:
    with pytest.raises(UserError, match=r"^cluster.ranks_per_node=8: 8 ranks need a GPU each, and torch sees 4$"):
        resolved("cluster.ranks_per_node=8", cores=64, gpus=4)
