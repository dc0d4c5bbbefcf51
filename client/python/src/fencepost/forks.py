"""What a forked child has anew: another thread of its parent may have held a lock at the fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """What a child has from its parent."""

    def after_fork(self) -> None:
        """Called in the child before the fork returns there; must not block."""


_all: weakref.WeakSet[Inherited] = weakref.WeakSet()


def register(each: Inherited) -> None:
    """Calls it in the child of each fork, for as long as it is there."""
    _all.add(each)


def _after_fork() -> None:
    errors: list[Exception] = []
    for each in list(_all):
        try:
            each.after_fork()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
