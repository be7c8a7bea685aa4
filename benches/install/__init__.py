"""Horovod for the torch that is installed: source, patch, build, wheel cache, proof."""


class BuildError(Exception):
    """Horovod could not be built or proven: one line with the first real error and the log. Exit status 1."""
