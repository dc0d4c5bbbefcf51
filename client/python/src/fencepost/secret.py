"""Texts that no representation shows: debuggers and error reports show the locals of a frame."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

_SHOWN = "<hidden>"


class Secret(str):
    """A credential: a text in every way but its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SHOWN


class SecretBytes(bytearray):
    """Bytes that may have a credential."""

    def __repr__(self) -> str:
        return _SHOWN


def hidden_url(url: T) -> T | Secret:
    """A URL, hidden if it has credentials."""
    is_hidden = isinstance(url, str) and "://" in url and "@" in url
    return Secret(url) if is_hidden else url
