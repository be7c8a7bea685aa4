"""Texts of records without what names people and machines: secrets, URLs, addresses, paths, hosts and users.

Each value that is taken out gets a pseudonym, `{host-1}`, the same wherever it stands, so that what differed still
differs; braces, since a shell leaves them alone. It errs to the side of taking out too much.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""A variable with such a word in its name never reaches a record (HOROVOD_SECRET_KEY among them)."""

KINDS = {
    "secret": "values of variables and options with a telling name, keys and tokens of known forms",
    "url": "URLs, whole",
    "path": "absolute paths and those in a home folder; of a program the part from its bin/ on stays",
    "address": "IP addresses but loopback, and hardware addresses",
    "host": "host names that the records or this machine give",
    "user": "account names, from home folders, NAME@HOST and this process; root is none",
}
"""What is taken out, in words."""

# Of a path, up to what a shell or a sentence would end it by.
PATH = r"[^\s'\"`:;,=()<>|&\[\]{}\\*?]"
SECRETS = re.compile(
    r"""(?P<name>\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*=
        |(?i:\b(?:api[_-]?key|token|secret|password|passwd)\s*[=:]\s*|bearer\s+)
        |(?i:--(?:api-?key|token|secret|password)\s+))
        (?P<value>'[^']*'|"[^"]*"|[^\s'",;&){][^\s'",;&)]*)""",
    re.VERBOSE,
)
KNOWN_FORMS = re.compile(
    r"\b(?:gh[opsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_\w{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    # A line of a key's body; a digest, in hex alone, is none.
    r"|(?<![\w+/])(?=[0-9a-f]*[G-Zg-z+/])(?=[^/]*[A-Z])[A-Za-z0-9+/]{60,}={0,2}"
)
URLS = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>)]+")
PATHS = re.compile(
    rf"(?<=')(?:/|~[\w.-]*/)[^']+(?=')|(?<=\")(?:/|~[\w.-]*/)[^\"]+(?=\")"
    rf"|(?:(?<=-[ILDB])|(?<![\w.}}/~-]))(?:/(?!/)|~[\w.-]*/){PATH}+"
)
PROGRAM = re.compile(r"(.+)(/s?bin/[^/]+)")
ADDRESSES = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)|(?<![\w.:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"
)
HARDWARE = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")
ACCOUNTS = re.compile(r"(?<![\w.@-])([\w.-]*\w)@([\w][\w.-]*)")
HOMES = re.compile(r"(?:/home/|/Users/|(?<![\w/])~)([\w][\w.-]*)")
NO_ACCOUNTS = ("root",)
NO_HOSTS = ("", "localhost")


class Scrubber:
    """Takes out the same values in one text after another and counts them."""

    def __init__(self, hosts: Iterable[str], users: Iterable[str], roots: Mapping[str, str]) -> None:
        """hosts, users: names that are known. roots: what to call known folders, by their absolute path."""
        self.replaced: Counter[str] = Counter()
        """Places where something was taken out, by kind."""
        self._known: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._hosts = _names({part for host in hosts for part in (host, host.split(".")[0])} - set(NO_HOSTS))
        self._users = _names(set(users) - {"", *NO_ACCOUNTS})
        ordered = sorted(roots.items(), key=lambda root: -len(root[0]))
        self._roots = [(re.compile(re.escape(path) + r"(?![\w.-])"), name) for path, name in ordered]

    def distinct(self) -> Counter[str]:
        """Values that were taken out, by kind."""
        return Counter(kind for kind, _ in self._known)

    def text(self, text: str, names: bool = True) -> str:
        """The text without them. names: hosts and users too, which may be words of another meaning."""
        text = SECRETS.sub(lambda found: found["name"] + self._pseudonym("secret", found["value"]), text)
        text = self._each(KNOWN_FORMS, "secret", text)
        text = self._each(URLS, "url", text)
        for root, name in self._roots:
            text = root.sub(self._naming("path", name), text)
        text = PATHS.sub(lambda found: self._path(found[0]), text)
        text = ADDRESSES.sub(lambda found: self._address(found[0]), text)
        if not names:
            return text
        text = ACCOUNTS.sub(lambda found: self._account(found[1], found[2]), text)
        text = self._each(self._hosts, "host", text)
        return self._each(self._users, "user", text)

    def tree(self, value: Any, names: Callable[[str], bool], named: bool = False) -> Any:
        """Every text in nested mappings and lists. names: whether hosts and users are looked for below this key."""
        if isinstance(value, dict):
            return {key: self._entry(str(key), one, names, named) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(one, names, named) for one in value]
        return self.text(value, named) if isinstance(value, str) else value

    def _entry(self, key: str, value: Any, names: Callable[[str], bool], named: bool) -> Any:
        if isinstance(value, str) and value and key.isupper() and any(word in key for word in SECRET_WORDS):
            return self._pseudonym("secret", value)
        return self.tree(value, names, named or names(key))

    def _each(self, pattern: re.Pattern[str] | None, kind: str, text: str) -> str:
        return pattern.sub(lambda found: self._pseudonym(kind, found[0]), text) if pattern else text

    def _naming(self, kind: str, name: str) -> Callable[[re.Match[str]], str]:
        return lambda found: self._named(kind, found[0], name)

    def _path(self, path: str) -> str:
        program = PROGRAM.fullmatch(path)
        return self._pseudonym("path", program[1]) + program[2] if program else self._pseudonym("path", path)

    def _address(self, text: str) -> str:
        if HARDWARE.fullmatch(text):
            return self._pseudonym("address", text)
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._pseudonym("address", text)

    def _account(self, user: str, host: str) -> str:
        shown = user if user in NO_ACCOUNTS else self._pseudonym("user", user)
        return f"{shown}@{host if host in NO_HOSTS else self._pseudonym('host', host)}"

    def _pseudonym(self, kind: str, value: str) -> str:
        if (kind, value) not in self._known:
            self._counts[kind] += 1
        return self._named(kind, value, f"{kind}-{self._counts[kind]}")

    def _named(self, kind: str, value: str, name: str) -> str:
        self.replaced[kind] += 1
        return "{" + self._known.setdefault((kind, value), name) + "}"


def accounts(texts: Iterable[str]) -> set[str]:
    """Account names that home folders in these texts give."""
    return {name for text in texts for name in HOMES.findall(text)}


def _names(names: Iterable[str]) -> re.Pattern[str] | None:
    """Any of them as a whole word, the longest first."""
    ordered = sorted(names, key=lambda name: (-len(name), name))
    return re.compile(rf"(?<![\w{{])(?:{'|'.join(map(re.escape, ordered))})(?![\w}}])") if ordered else None
