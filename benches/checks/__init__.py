"""Checks of Ringduel itself: is what it measures what a script without it would see, and does it run on a GPU?"""

TURNS = "turns.json"
"""Block seconds of one launch of `fidelity`: {"ours": [[one a rank], one a block], "theirs": likewise}."""
