"""Which rank runs on which node, against what the case asks: ranks fill the nodes in order."""

from __future__ import annotations

from collections.abc import Sequence


def misplaced(found: Sequence[str | None], ranks_per_node: int, planned: Sequence[str] = ()) -> str | None:
    """One line on the first rank that runs elsewhere than asked; None: there is none.

    found: names of nodes by rank, None: not known yet. planned: the nodes' names by number; empty: any names, as long
    as the ranks of one node share one and no two nodes have the same.
    """
    firsts = found[::ranks_per_node]
    wanted = planned or firsts
    for rank, name in enumerate(found):
        node = rank // ranks_per_node
        if None not in (name, wanted[node]) and name != wanted[node]:
            return f"rank {rank} runs on {name}, and its node {node} is {wanted[node]}"
    for node, name in enumerate(firsts):
        if name is not None and name in firsts[:node]:
            other = firsts.index(name)
            return f"rank {node * ranks_per_node} runs on {name}, its node {node}, which is node {other} too"
    return None
