"""Numbers and verdicts in plain words, and strings from records made harmless. Ratios are of step times."""

from __future__ import annotations

import math
import sys
import textwrap
import unicodedata
from collections.abc import Sequence

from analysis.compare import Comparison
from analysis.estimate import Estimate

BINARY = ("B", "KiB", "MiB", "GiB")


def clean(text: str, most: int | None = None) -> str:
    """One line without control, bidirectional or unassigned characters (shown as escapes), cut at `most` characters.

    Each format then escapes what is special to it.
    """
    shown = "".join(c if unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" else _escape(c) for c in text)
    return shown if most is None or len(shown) <= most else shown[: most - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if ord(character) else "\\0"


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent: 0.0123, 12.3, 12300."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.{_places(rounded, digits)}f}"


def _places(value: float, digits: int) -> int:
    return max(digits - 1 - math.floor(math.log10(abs(value))), 0) if value else 0


def size(count: int) -> str:
    """Bytes as `512 B`, `64 KiB`, `256 MiB`."""
    power = min((count.bit_length() - 1) // 10, len(BINARY) - 1) if count else 0
    return f"{count / 1024**power:g} {BINARY[power]}"


def duration(seconds: float) -> str:
    """Seconds as `12.3 µs`, `4.56 ms`, `1.23 s`."""
    factor, unit = next(((f, u) for f, u in ((1, "s"), (1e3, "ms")) if seconds * f >= 1), (1e6, "µs"))
    return f"{significant(seconds * factor)} {unit}"


def spread(estimate: Estimate) -> str:
    """`71.3 (70.1–72.0)`: median and spread of the launches, with the decimals that suit the median."""
    places = _places(estimate.value, 3)
    value, low, high = (f"{number:.{places}f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}–{high})"


def percent(ratio: float) -> str:
    """`3.1 % slower`, `12 % faster`, `2.3 × as long`: of step time, so that slower means it takes that much longer."""
    change = abs(ratio - 1) * 100
    if change < 0.05:
        return "the same"
    if ratio >= 2:
        return f"{significant(ratio, 2)} × as long"
    return f"{_percent(change)} % {'slower' if ratio > 1 else 'faster'}"


def _percent(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def change(ratio: float) -> str:
    """`+3.1 %`, the change in step time."""
    return f"{_signed((ratio - 1) * 100)} %"


def half_width(share: float) -> str:
    """`±0.4 %`, `a factor of 53`."""
    if not math.isfinite(share):
        return "without interval"
    return f"±{_percent(share * 100)} %" if share < 1 else f"a factor of {significant(1 + share, 2)}"


def interval(ratio: Estimate) -> str:
    """`−2.0 … +8.4 %`, the change in step time; empty where the launches allow no interval."""
    if not math.isfinite(ratio.high):
        return ""
    low, high = ((bound - 1) * 100 for bound in (ratio.low, ratio.high))
    return f"{_signed(low)} … {_signed(high)} %"


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{_percent(abs(value))}"


def verdict(found: Comparison, doubt: bool = True) -> str:
    """`3.1 % slower (provisional)`, `equivalent, 0.4 % slower`, `inconclusive, 3.1 % slower so far`."""
    change = percent(found.ratio.value)
    text = {
        "slower": change,
        "faster": change,
        "equivalent": "equivalent" if found.direction is None else f"equivalent, {change}",
        "inconclusive": f"inconclusive, {change} so far",
    }[found.verdict]
    return text + (" (provisional)" if found.provisional and doubt else "")


def deviation(share: float | None) -> str:
    """`1.3 %`, a standard deviation of logarithms."""
    return "–" if share is None else f"{share * 100:.2f} %"


def ranks(world_size: int) -> str:
    return f"{world_size} rank{'s' if world_size > 1 else ''}"


def launches(counts: Sequence[int]) -> str:
    """`3 launches each`, `2 to 3 launches each`."""
    low, high = min(counts), max(counts)
    if low != high:
        return f"{low} to {high} launches each"
    return f"{high} launch{'es' if high > 1 else ''} each"


def title(name: str, cell: str) -> str:
    """The cell alone where the name says no more (`horovod-mpi` is horovod/mpi), else both."""
    if set(name.replace("/", "-").split("-")) <= set(cell.split("/")):
        return cell
    return f"{clean(name)} ({cell})"


def magnitude(value: float) -> str:
    """`1.2e-05`; the records hold the largest float where an error is not finite."""
    return "not finite" if not abs(value) < sys.float_info.max else f"{value:.2g}"


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters; a number and its % stay together."""
    return "\n".join(textwrap.wrap(text.replace(" %", "\u00a0%"), width, break_on_hyphens=False))
