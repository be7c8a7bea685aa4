"""The Case (what one contestant runs, fully resolved) and the Study (cases that are compared).

Units stand in the names: `_s` seconds, `_ms` milliseconds, `_mb` 2**20 bytes, `_gbps` 10**9 bits per second.
Nothing here imports torch, Horovod or Hydra: the driver, the ranks and the analysis all read these types.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

EngineName = Literal["local", "ddp", "horovod"]
TransportName = Literal["gloo", "mpi", "nccl"]
Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
ClusterKind = Literal["local", "virtual", "hosts", "slurm", "kubernetes"]
LauncherName = Literal["auto", "direct", "torchrun", "horovodrun", "mpirun", "srun"]

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Mebibytes = Annotated[float, Meta(gt=0, le=2**20)]
"""Up to a tebibyte: more than any gradient, and within the libraries' integers."""
Whole = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]
Reference = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", description="package.module:callable")]
"""A Python object by name, `package.module:attribute`."""

NodeNumber = Annotated[str, Meta(pattern=r"^(0|[1-9]\d*)\Z", description="number of a node, from 0")]
"""As text: JSON, in which records are, has no other keys."""
Port = Annotated[int, Meta(ge=1, le=65535)]

Cores = Annotated[str, Meta(pattern=r"^\d+(,\d+)*\Z", description="core numbers by local rank, such as '2,3'")]

StudyName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z",
        description="up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit",
    ),
]
"""Name of a folder; the pattern keeps it inside the results folder."""

# What each engine can travel over (DDP over MPI: a comm hook of ours).
TRANSPORTS: dict[str, tuple[str, ...]] = {
    "local": (),
    "ddp": ("gloo", "mpi", "nccl"),
    "horovod": ("gloo", "mpi", "nccl"),
}

EMULATED = "benches.workloads.emulated:emulated"
"""Factory of models whose layers sleep."""


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value: it cannot change. `build` checks types, bounds and unknown keys; the constructor does not."""


class ModelSpec(Frozen, frozen=True, kw_only=True):
    """The model under test and how one step of it is made."""

    name: Name
    """Its name in tables."""
    factory: Reference
    """Callable of `kwargs` that returns a torch.nn.Module."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments of `factory`."""
    batch: Reference
    """Callable of (generator, per_rank_batch, device, **batch_kwargs) that returns a pytree of tensors."""
    batch_kwargs: dict[str, Any] = {}
    """Further keyword arguments of `batch`, such as the shape of an image."""
    loss: Reference | None = None
    """Callable of (model, batch) that returns a scalar; null: the model itself, called with the batch, returns it."""
    sample: str = "sample"
    """The unit of throughput: image, sequence, token."""
    samples_per_item: Count = 1
    """Units of throughput in one item of the batch (tokens in a sequence); 1 for images."""

    @property
    def emulated(self) -> bool:
        """Whether its layers sleep instead of computing."""
        return self.factory == EMULATED


class DataSpec(Frozen, frozen=True, kw_only=True):
    """Where batches come from."""

    name: Literal["synthetic", "digits", "imagefolder"] = "synthetic"
    """synthetic: `model.batch`, drawn afresh; digits: scikit-learn's set; imagefolder: pictures under `root`."""
    per_rank_batch: Count
    """Items in one rank's batch of one pass (resolved from `data.global_batch` where that is given)."""
    root: str | None = None
    """Folder of `imagefolder`, one sub-folder a class; null for the others."""
    workers: Whole = 0
    """Loader processes of each rank (imagefolder); 0: the rank loads by itself."""


class OptimizerSpec(Frozen, frozen=True, kw_only=True):
    """The optimizer; its learning rate is never scaled by the world size."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.01
    """Learning rate, the same in every contestant and at every world size."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """SGD only; ignored by adam and adamw."""
    weight_decay: NotNegative = 0.0
    fused: bool = False
    """torch's fused implementation of the update."""
    capturable: bool = False
    """adam and adamw on CUDA: count the steps on the device, as `cuda_graphs` needs it. torch's default: false."""


class DdpSettings(Frozen, frozen=True, kw_only=True):
    """DistributedDataParallel's own options, under its own names."""

    bucket_cap_mb: Mebibytes | None = None
    """Largest bucket in MiB. null: the library's default, a first bucket of 1 MiB and the rest of 25."""
    first_bucket_mb: Mebibytes | None = None
    """Largest first bucket in MiB; it holds the gradients that come first. null: the library's default, 1 where
    `bucket_cap_mb` is null, else `bucket_cap_mb`."""
    broadcast_buffers: bool = False
    """Broadcast buffers from rank 0 before each forward. torch's default is true; off here, as Horovod never does."""
    gradient_as_bucket_view: bool = False
    """Gradients are views into the buckets. torch's default: false."""
    static_graph: bool = False
    """Promise that the graph does not change. torch's default: false."""
    find_unused_parameters: bool = False
    """Search each graph for parameters without gradient. torch's default: false."""
    comm_hook: Literal["fp16", "bf16", "powersgd"] | None = None
    """torch's own communication hooks: gradients travel as fp16 or bf16 (divided first), or as PowerSGD's products of
    two thin matrices (NCCL only). Lossy. null: none, torch's default. bf16 needs a CUDA build of torch."""
    powersgd_rank: Annotated[int, Meta(ge=1, le=10**6)] = 1
    """PowerSGD only: columns of its matrices (`matrix_approximation_rank`). torch's default: 1."""
    through_hook: bool = False
    """Gloo only: send buckets through the Python thread that DDP over MPI needs, to measure what that costs."""
    is_high_priority_stream: bool = False
    """NCCL only: communicate in a CUDA stream of high priority (ProcessGroupNCCL's option). torch's default: false."""


class HorovodSettings(Frozen, frozen=True, kw_only=True):
    """Horovod's own options, under its own names."""

    fusion_threshold_mb: Annotated[float, Meta(ge=0, le=2**20)] = 128.0
    """Largest fused message in MiB. Horovod's default: 128; 0: no fusion."""
    cycle_time_ms: Annotated[float, Meta(gt=0, le=60_000)] = 1.0
    """Time between two looks for tensors that are ready. Horovod's default: 1 ms."""
    cache_capacity: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1024
    """Entries of the response cache. Horovod's default: 1024; 0: off."""
    controller: Literal["gloo", "mpi"] | None = None
    """What the ranks agree over on which tensors are ready. null: mpi where the transport is mpi, else gloo; NCCL goes
    with either. Horovod's default: MPI where it was built with it."""
    hierarchical_allreduce: bool = False
    """Reduce within each node over NCCL, then between the nodes over MPI. NCCL on several nodes, with the controller
    mpi. Horovod's default: false."""
    torus_allreduce: bool = False
    """Reduce-scatter within each node, all-reduce between the nodes, all-gather within, all over NCCL. NCCL on several
    nodes. Horovod's default: false."""
    compression: Literal["none", "fp16"] = "none"
    """fp16: gradients are cast before they travel (summed first, then divided). Lossy. Horovod's default: none; it has
    no bf16."""
    groups: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    """Number of groups of gradients; a group travels when all of it is ready. null: none, Horovod's default."""
    disable_group_fusion: bool = False
    """Never fuse two groups into one message. Horovod's default: false."""
    gradient_predivide_factor: Positive = 1.0
    """f: gradients are divided by f before the sum and by size / f after it. Horovod's default: 1; DDP divides by the
    world size before the sum."""
    num_nccl_streams: Annotated[int, Meta(ge=1, le=1024)] = 1
    """NCCL only: CUDA streams, and communicators, that messages take in turn. Horovod's default: 1."""
    enable_async_completion: bool = False
    """NCCL only: a reduction counts as done once it is enqueued, and later kernels wait for it on the GPU. Horovod's
    default: false."""
    batch_d2d_memcopies: bool = True
    """NCCL only: copy the tensors of a fused message by one kernel. Horovod's default: true."""
    autotune: bool = False
    """Horovod searches `fusion_threshold_mb` in 0-64 and `cycle_time_ms` in 1-100 in its first turn, before its first
    timed block, and keeps the best; its own defaults lie outside. One rank has nothing to tune. Horovod's default:
    false."""
    autotune_steps_per_sample: Count = 10
    """autotune only: steps of one sample. The search takes 24 points of five samples each. Horovod's default: 10."""
    thread_affinity: Cores | None = None
    """Core of each local rank's background thread, such as "2,3" for two ranks a node. null: not bound, Horovod's
    default."""


class ClusterSpec(Frozen, frozen=True, kw_only=True):
    """The shape of the job: how many ranks, where, with how many threads."""

    name: ClusterKind = "local"
    nodes: Count = 1
    ranks_per_node: Count = 1
    threads_per_rank: Count = 1
    """Compute threads of a rank: OMP_NUM_THREADS and torch's intra-op pool."""
    link_gbps: Positive | None = None
    """Rate of each node's link where the cluster shapes it; null: as it is."""
    link_latency_ms: Positive | None = None
    """Delay of what each node sends, where the cluster shapes links; a round trip takes twice as long. null: none."""
    slow_node: dict[NodeNumber, Positive] = {}
    """`link_gbps` of single nodes by their number, such as {1: 0.1}; the others have the common one."""
    hosts: Annotated[tuple[Name, ...], Meta(description="a list such as [a:8,b:8]")] = ()
    """Machines reached over ssh, each with the number of ranks that it may hold; the first holds rank 0."""
    nic: Name | None = None
    """Network device of hosts and Slurm's nodes, by the same name on each; null: what each library picks."""
    ssh_port: Port | None = None
    """Of the hosts' ssh servers; null: as ~/.ssh/config says, else 22."""
    identity_file: Name | None = None
    """Private key for the hosts; null: as ~/.ssh/config says."""
    launcher: LauncherName = "auto"
    """auto: torchrun for DDP, horovodrun for Horovod over gloo, mpirun over MPI, none for local. In Slurm auto is srun
    for all, and mpirun takes its place where ranks talk over MPI."""
    mpi_yield_when_idle: bool = False
    """MPI's polling policy: give up the core while waiting. Resolved: true where cores < 2 x ranks on a host."""
    env: dict[str, str] = {}
    """Environment of every rank of every contestant alike, such as NCCL_SOCKET_IFNAME."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def ranks_on_a_machine(self) -> int:
        """Ranks that share cores and memory: virtual nodes are all on one machine."""
        return self.world_size if self.name == "virtual" else self.ranks_per_node


class Case(Frozen, frozen=True, kw_only=True):
    """One resolved configuration. Its id is a hash of its content; it knows no host, folder or result."""

    engine: EngineName
    transport: TransportName | None
    """null for the engine `local` only."""
    device: Device
    precision: Precision = "fp32"
    """fp32; bf16: autocast; fp16: autocast with a gradient scaler."""
    compile: bool = False
    """torch.compile the model before it is wrapped."""
    cuda_graphs: bool = False
    """Capture the whole step in a CUDA graph after the warm-up, and replay it. DDP over NCCL and local, on CUDA."""
    channels_last: bool = False
    """Memory format of 4-d tensors."""
    tf32: bool = False
    """Allow TF32 in matrix products and convolutions (CUDA)."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its algorithms during the warm-up (CUDA)."""
    seed: Whole = 1
    """Seed of weights and data; step and rank are mixed into it."""
    python: str | None = None
    """Another environment's interpreter; null: the one that runs the driver."""
    accumulation_steps: Count = 1
    """Forward and backward passes of one step, each on a batch of its own, before the one reduction and the update."""
    warmup_steps: Annotated[int, Meta(ge=10)] = 10
    """Least untimed steps before the first block."""
    block_steps: Count = 20
    """Consecutive timed steps of one block."""
    curve_max_mb: Annotated[float, Meta(ge=0.001, le=1024)] | None = None
    """After the timed blocks, time the all-reduce itself for messages of 4 bytes, 8, 16 … up to so many MiB. null: no
    such curve. One rank has none."""
    trace_messages: bool = False
    """After everything timed, learn which messages Horovod sends in a step (count and bytes). Horovod is restarted for
    that, which takes seconds and is not without danger; DDP's buckets are known without."""
    limit_s: Positive = 300.0
    """Wall-clock limit of one launch; then its processes are ended and the launch has failed."""
    allow_oversubscribe: bool = False
    """Let ranks x threads exceed the cores of a host; such rows are marked."""
    model: ModelSpec
    data: DataSpec
    optimizer: OptimizerSpec
    ddp: DdpSettings | None = None
    """The settings of the engine in use; null for every other engine."""
    horovod: HorovodSettings | None = None
    """The settings of the engine in use; null for every other engine."""
    cluster: ClusterSpec

    def __post_init__(self) -> None:
        choices = TRANSPORTS[self.engine]
        if (self.transport or "") not in (choices or ("",)):
            raise ValueError(f"transport={self.transport}: engine {self.engine} takes {', '.join(choices) or 'null'}")
        if self.transport == "nccl" and self.device == "cpu":
            raise ValueError("transport=nccl: needs device=cuda; on cpu take gloo or mpi")
        if self.engine == "local" and self.cluster.world_size != 1:
            raise ValueError(f"cluster: engine local has one process, not {self.cluster.world_size}")
        if (self.ddp is not None) != (self.engine == "ddp") or (self.horovod is not None) != (self.engine == "horovod"):
            raise ValueError(f"engine={self.engine}: exactly the settings of the engine in use must be present")
        if self.ddp is not None and self.ddp.through_hook and self.transport != "gloo":
            why = "DDP over MPI always goes through it" if self.transport == "mpi" else "it measures the way to MPI"
            raise ValueError(f"ddp.through_hook=true: transport=gloo only, not {self.transport}; {why}")
        if self.ddp is not None and self.ddp.comm_hook is not None and self.our_hook:
            raise ValueError(
                f"ddp.comm_hook={self.ddp.comm_hook}: DDP takes one hook, and ours carries the buckets here; take "
                "null, or transport=gloo with ddp.through_hook=false"
            )

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON of the content."""
        return content_hash(self)

    @property
    def cell(self) -> str:
        """`ddp/gloo`, `horovod/mpi`, or `local`."""
        return f"{self.engine}/{self.transport}" if self.transport else self.engine

    @property
    def global_batch(self) -> int:
        """Units of throughput in one step of the whole job, all its passes together."""
        items = self.cluster.world_size * self.accumulation_steps * self.data.per_rank_batch
        return items * self.model.samples_per_item

    @property
    def our_hook(self) -> bool:
        """Whether gradients go through our Python hook: DDP over MPI, and its control over gloo."""
        return self.ddp is not None and (self.transport == "mpi" or self.ddp.through_hook)

    @property
    def uses_mpi(self) -> bool:
        """Whether the ranks talk over MPI, for the gradients or to agree on them."""
        return self.transport == "mpi" or (self.horovod is not None and self.horovod.controller == "mpi")

    @property
    def lossy(self) -> Literal["fp16", "bf16", "powersgd"] | None:
        """What changes gradients on their way beyond the rounding of a sum; null: nothing."""
        if self.ddp is not None:
            return self.ddp.comm_hook
        return "fp16" if self.horovod is not None and self.horovod.compression == "fp16" else None


class Contestant(Frozen, frozen=True, kw_only=True):
    """A case in a study."""

    name: Name
    """Unique among the contestants of one point: the key in `study.contestants` and what its sub-grid sweeps."""
    point: dict[str, Any] = {}
    """Values of the study's axes, by dotted key. Contestants of one point are compared with each other."""
    settings: dict[str, Any] = {}
    """Values that this contestant's own sub-grid sweeps, by dotted key."""
    case: Case
    copy: Whole = 0
    """0: the contestant itself. A further copy of one: 1 is the A/A control, others stand for the reference in further
    heats. Copies are no rows of tables."""
    heat: Whole = 0
    """Contestants of one heat are alive together."""

    @property
    def key(self) -> str:
        """Names the folder of its launches: the id of its case, with the number of the copy behind it."""
        return f"{self.case.id}-{self.copy}" if self.copy else self.case.id


class Study(Frozen, frozen=True, kw_only=True):
    """Contestants, the axes they are compared across, and how. Frozen before the first block."""

    name: StudyName
    contestants: Annotated[tuple[Contestant, ...], Meta(min_length=1)]
    reference: dict[str, Any] = {}
    """Settings that the reference contestant matches, such as {engine: ddp, transport: gloo}."""
    schedule: Literal["duel", "relaunch"] = "duel"
    """duel: the contestants of a heat are alive together and take turns, a block each; those that do not run are
    stopped. relaunch: fresh processes for each contestant in turn, which run all its blocks, since a start takes many
    times as long as a block; with rounds=1, for each block. Both in balanced order."""
    launches: Count = 6
    """Launches of each contestant; the launch is the replicate. With `stop_when`: those before the first look."""
    rounds: Count = 5
    """Blocks of each launch."""
    control: bool = True
    """Run a second copy of the reference beside it, the A/A control: what it differs by is noise."""
    confirm: bool = True
    """Let the best of each engine meet again in as many fresh launches, where an engine has several contestants: the
    launches that chose them flatter them."""
    stop_when: Literal["verdict"] | Positive | None = None
    """verdict: add launches until no comparison is inconclusive; a number: until each interval is within a factor of
    1 + that number of its ratio. null: run `launches` and stop. Looks are after `launches`, 1.5, 2.25 and 3.375 times
    as many."""
    max_alive: Annotated[int, Meta(ge=2)] = 8
    """Launches that may be alive together; more contestants meet in several heats, each with the reference."""
    margin: Positive = 0.02
    """Step times within a factor of 1 + margin count as equivalent."""
    budget_s: Positive | None = None
    """Start no heat and no retry after this many seconds of one `run`; null: no budget."""
    retries: Whole = 0
    """Times that a failed launch is tried again."""
    max_cases: Count = 200
    """Refuse a study with more cases."""
    price_per_node_hour: Positive | None = None
    """What a node costs an hour, in any currency; reports then say what samples cost. null: they do not."""
    allow_unfair: Annotated[tuple[Name, ...], Meta(description="a list of keys, such as [optimizer.lr]")] = ()
    """Keys in which contestants may differ though that biases their comparison; the result lists them."""

    @property
    def hash(self) -> str:
        return content_hash(self)

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of launches after which a study that stops by itself is judged; else the one number."""
        return tuple(round(self.launches * 1.5**k) for k in range(LOOKS)) if self.stop_when else (self.launches,)


LOOKS = 4
AGAIN_FROM, CONFIRM_FROM = 1000, 2000
"""Numbers of the first launch that checks a suspicious A/A control, and of the first that confirms the best."""

T = TypeVar("T")


def build(kind: type[T], content: object) -> T:
    """Make a value of mappings and lists. Raises msgspec.ValidationError, whose text names the path of the fault."""
    return msgspec.convert(content, kind)


def plain(value: object) -> Any:
    """The mappings, lists and scalars that `build` takes."""
    return msgspec.to_builtins(value)


def content_hash(value: object) -> str:
    """First 12 hex digits of the SHA-256 of canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_case(path: Path) -> Case:
    """Read a case file. Raises OSError, yaml.YAMLError or msgspec.ValidationError."""
    import yaml  # slow to import, and only ranks and studies read files

    return build(Case, yaml.safe_load(path.read_text()))


def dump(value: object) -> str:
    """YAML text that `load_case` and its kin read back as the same value."""
    import yaml

    # libyaml where PyYAML has it: ten times as fast, and a study may have hundreds of cases.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(plain(value), Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))
