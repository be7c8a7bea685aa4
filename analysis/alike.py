"""Points of a sweep that come to the same in effect, whatever was asked for."""

from __future__ import annotations

from analysis import table
from analysis.table import Records
from benches.record import Header
from benches.spec import content_hash, plain

ALONE = ("controller", "cycle_time_ms", "thread_affinity")
"""Settings of Horovod that one rank notices: its background thread wakes, and finds nothing to send."""


def same_as(records: Records) -> dict[int, str]:
    """`same as NAME` of each contestant that does what an earlier one of its point does; keys: places in the study."""
    first: dict[tuple[str, str], str] = {}
    found = {}
    for index, (contestant, case_id) in enumerate(zip(records.study.contestants, records.case_ids, strict=True)):
        header = records.headers.get(case_id)
        if header is None or not header.effective or contestant.copy:
            continue
        name = first.setdefault((table.label(contestant.point), in_effect(header)), contestant.name)
        if name != contestant.name:
            found[index] = f"same as {name}"
    return found


def in_effect(header: Header) -> str:
    """Hash of a case in which the sizes that were asked for are replaced by what came of them.

    DDP: the sizes of its buckets. Horovod: a threshold caps nothing once all gradients fit into one message, groups
    come to a number, and one rank sends nothing at all. MPI: the polling policy, which MPICH does not have.
    """
    content, effective = plain(header.case), header.effective
    if header.case.ddp is not None and effective.get("bucket_sizes_bytes"):
        content["ddp"] |= {"bucket_cap_mb": None, "first_bucket_mb": None, "buckets": effective["bucket_sizes_bytes"]}
    horovod = header.case.horovod
    if horovod is not None and horovod.fusion_threshold_mb * 2**20 >= header.gradient_bytes:
        content["horovod"]["fusion_threshold_mb"] = "all"
    if horovod is not None and header.world_size == 1:
        content["horovod"] = {name: content["horovod"][name] for name in ALONE}
    elif horovod is not None and horovod.groups is not None:
        content["horovod"]["groups"] = effective.get("groups", horovod.groups)
    cluster = content["cluster"]
    cluster["mpi_yield_when_idle"] = header.provenance.get("mpi_polling", cluster["mpi_yield_when_idle"])
    return content_hash(content)
