"""The engines behind one contract, by name. Each is imported only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.spec import Case

if TYPE_CHECKING:
    from benches.engines.base import Engine


def join(case: Case) -> Engine:
    """Join the job of this case. Raises RuntimeError when its size is not what the case asks for."""
    engine = _engine(case)
    if engine.world_size != case.cluster.world_size:
        found = engine.world_size
        engine.close()
        raise RuntimeError(
            f"world size {found} where {case.cluster.world_size} was asked for: "
            f"was {case.cell} started by another launcher, or by another MPI than the one it was built with?"
        )
    return engine


def _engine(case: Case) -> Engine:
    if case.engine == "local":
        from benches.engines.local import LocalEngine

        return LocalEngine(case)
    if case.engine == "ddp":
        return _ddp(case)
    from benches.engines.horovod import HorovodEngine

    return HorovodEngine(case)


def _ddp(case: Case) -> Engine:
    if case.transport == "mpi":
        from benches.engines.ddp_mpi import DdpMpiEngine

        return DdpMpiEngine(case)
    if case.ddp is not None and case.ddp.through_hook:
        from benches.engines.hook import HookedDdpEngine

        return HookedDdpEngine(case)
    from benches.engines.ddp import DdpEngine

    return DdpEngine(case)
