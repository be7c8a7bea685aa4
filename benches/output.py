"""What commands print for machines."""

from __future__ import annotations

import json
import sys


def print_json(value: object) -> None:
    """One object on standard output."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    print()
