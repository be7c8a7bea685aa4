"""Asked in the ranks' own interpreter before any rank starts: does the model import, what does Horovod carry, which
MPI does mpi4py load?"""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from benches.errors import UserError
from benches.spec import ModelSpec, build
from benches.workloads.references import check_model, one_line
from launchers.tools import LIBMPI

MARK = "ringduel-probe "
"""Begins the one line that counts; whatever an import prints stands on others."""


class Answer(msgspec.Struct, kw_only=True):
    """What the interpreter has to say."""

    fault: str | None = None
    """The first model that does not import, in the words for the user."""
    gpus: int | None = None
    """That torch sees; null where it was not asked for."""
    lacks: dict[str, str] = {}
    """Settings of DDP that were asked for and that the installed torch does not have, with what it takes instead."""
    horovod: dict[str, bool] | None = None
    """Transports that Horovod was built with; null where it is absent or was not asked for."""
    horovod_fault: str | None = None
    """Why an installed Horovod does not import."""
    mpi: str | None = None
    """Name and version of the MPI that mpi4py loads; null where it was not asked for, or does not import."""
    mpi_fault: str | None = None
    """Why mpi4py does not import."""


def main(request: str) -> None:
    """Answer a request `{"models": [ModelSpec, …], "horovod": bool, "gpus": bool, "ddp": [names in LACKING],
    "mpi": bool, "libmpi": path or null}` on standard output."""
    wanted: dict[str, Any] = json.loads(request)
    answer = Answer(fault=model_fault([build(ModelSpec, model) for model in wanted["models"]]))
    if wanted["horovod"]:
        answer.horovod, answer.horovod_fault = horovod_transports()
    if wanted["gpus"]:
        import torch

        answer.gpus = torch.cuda.device_count()
    answer.lacks = {name: takes for name in wanted["ddp"] if (takes := LACKING[name]())}
    if wanted["mpi"]:
        answer.mpi, answer.mpi_fault = mpi_version(wanted["libmpi"])
    print(f"\n{MARK}{msgspec.json.encode(answer).decode()}", flush=True)


def model_fault(models: list[ModelSpec]) -> str | None:
    """The first model's fault; None where all import and take their arguments."""
    try:
        for model in models:
            check_model(model)
    except UserError as error:
        return str(error)
    return None


def no_bf16_hook() -> str | None:
    """Torch takes its bf16 hook only in a build with NCCL (or RCCL), whatever the transport."""
    import torch.distributed

    return None if torch.distributed.is_nccl_available() else f"null, fp16 (torch {torch.__version__} has no NCCL)"


def no_first_bucket() -> str | None:
    """An option of newer torch."""
    import torch

    from benches.engines.ddp import sets_first_bucket

    return None if sets_first_bucket() else f"null (torch {torch.__version__} cannot set it)"


LACKING = {"ddp.comm_hook=bf16": no_bf16_hook, "ddp.first_bucket_mb": no_first_bucket}
"""Settings that not every torch has; asked for only where a case has them, since each imports torch."""


def horovod_transports() -> tuple[dict[str, bool] | None, str | None]:
    """What Horovod was built with, and why it does not import where it is there but fails."""
    try:
        import horovod.torch as hvd

        built = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": hvd.nccl_built()}
    except ModuleNotFoundError as error:
        return None, None if error.name in ("horovod", "horovod.torch") else one_line(error)
    except Exception as error:  # a build for another torch may fail in any way, a missing name included
        return None, one_line(error)
    return {name: bool(there) for name, there in built.items()}, None


def mpi_version(library: str | None) -> tuple[str | None, str | None]:
    """What the MPI that mpi4py loads says of itself, and why it does not load. MPI is not initialised."""
    if library is not None:
        os.environ[LIBMPI] = library
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI

        return " ".join(MPI.Get_library_version().split()), None
    except Exception as error:  # RuntimeError where no libmpi is found, ImportError where a build does not fit
        return None, one_line(error)
