"""Errors that reach the person at the terminal as one line."""


class UserError(Exception):
    """The user's mistake: names the key, the bad value and the choices. Exit status 2, no traceback."""
