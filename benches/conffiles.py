"""The files under conf/, ours and the user's own, and what Hydra composes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benches.errors import UserError
from benches.explain import GROUPS, listed, show

CONF = Path(__file__).resolve().parent.parent / "conf"
UNREADABLE = (HydraException, OmegaConfBaseException, YAMLError)


class Composed(NamedTuple):
    """What one choice of files gives."""

    config: DictConfig
    choices: dict[str, str | None]
    """The file of each group, whoever chose it."""


class Files:
    """conf/ and `--config-dir`. Compositions are kept: Hydra takes some 50 ms for each."""

    def __init__(self, own: Path | None = None) -> None:
        self.own = own.expanduser().absolute() if own is not None else None
        self._kept: dict[tuple[tuple[str, str | None], ...], Composed] = {}
        if self.own is not None:
            _check_own(self.own)

    def choices(self, group: str) -> list[str]:
        """Names of the files of a group."""
        folders = [CONF / group, *([self.own / group] if self.own else [])]
        return sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))

    def check(self, group: str, choice: Any, shown: str | None = None) -> None:
        """Raise UserError unless the group has this file."""
        if choice in self.choices(group) or (group == "experiment" and choice is None):
            return
        raise UserError(f"{shown or group}={show(choice)}: choices: {listed(self.choices(group))}")

    def compose(self, groups: dict[str, str | None]) -> Composed:
        """The composition of these files, the rest as they choose, kept: not to be changed. Raises UserError."""
        key = tuple(sorted(groups.items()))
        if key not in self._kept:
            self._kept[key] = self._compose(groups)
        return self._kept[key]

    def _compose(self, groups: dict[str, str | None]) -> Composed:
        words = [f"{group}={show(choice)}" for group, choice in groups.items()]
        try:
            with initialize_config_dir(str(CONF), job_name="ringduel", version_base="1.3"):
                config = compose("config", [*words, *self._search_path()], return_hydra_config=True)
        except UNREADABLE as error:
            raise UserError(f"{' '.join(words) or 'conf'}: {one_line(error)}") from error
        choices = {group: config.hydra.runtime.choices.get(group) for group in (*GROUPS, "experiment")}
        OmegaConf.set_struct(config, False)
        del config["hydra"]
        if "experiment" in config:
            raise UserError(f"experiment={choices['experiment']}: its file must begin with: # @package _global_")
        return Composed(config, choices)

    def _search_path(self) -> list[str]:
        if self.own is None:
            return []
        quoted = str(self.own).replace("\\", "\\\\").replace("'", "\\'")
        return [f"hydra.searchpath=['file://{quoted}']"]


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split())


def _check_own(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--config-dir={folder}: no such folder")
    for path in sorted(folder.glob("*/*.yaml")):
        name = path.relative_to(folder)
        if (CONF / name).exists():
            raise UserError(f"--config-dir={folder}: {name} would hide behind Ringduel's own file; rename it")
