"""`make hook-cost`: what our Python hook adds to a step. DDP over gloo as torch has it, against DDP through the hook.

Further words go to `ringduel run experiment=hook_cost`. A benchmark, not a test: its numbers depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console

from analysis import summary as summaries
from analysis import table
from analysis.estimate import Estimate
from analysis.rows import Row, Summary
from benches.commands import run_command
from benches.config import compose
from benches.errors import UserError

HEAD = ("model", "ranks", "buckets", "native, ms", "through the hook, ms", "ratio", "interval", "launches")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, or what is missing of it, and print its table."""
    words = ["experiment=hook_cost", *(sys.argv[1:] if arguments is None else arguments)]
    try:
        status = run_command(words, None, False, Console(stderr=True, soft_wrap=True))
        resolved = compose(words, None)
    except UserError as error:
        print(f"hook-cost: {error}", file=sys.stderr)
        return 2
    summary = summaries.reduce(table.read(resolved.results / resolved.study.name))
    print()
    for cells in (HEAD, ("---",) * len(HEAD), *rows(summary)):
        print(f"| {' | '.join(cells)} |")
    return status


def rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    """One for each contestant through the hook that was measured beside a native one."""
    by_index = {row.index: row for row in summary.rows}
    for row in summary.rows:
        comparison = summary.against_reference(row)
        if row.case.our_hook and comparison is not None:
            yield _cells(by_index[comparison.b], row, comparison.ratio)


def _cells(native: Row, hooked: Row, ratio: Estimate) -> tuple[str, ...]:
    return (
        hooked.case.model.name,
        str(hooked.world_size),
        str(hooked.effective.get("messages_per_step", "–")),
        _ms(native),
        _ms(hooked),
        f"{ratio.value:.3f}",
        f"{ratio.low:.3f} … {ratio.high:.3f} ({ratio.level * 100:.4g} %)",
        str(ratio.n),
    )


def _ms(row: Row) -> str:
    return f"{row.step_time_s.value * 1e3:.2f}" if row.step_time_s else "–"


if __name__ == "__main__":
    sys.exit(main())
