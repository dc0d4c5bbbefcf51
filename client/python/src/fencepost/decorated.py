"""Functions that a lock may decorate: their body runs while the lock is held."""

from __future__ import annotations

import inspect
from typing import Any, Callable

_ASYNC = "async def"
_KINDS = (
    (inspect.isgeneratorfunction, "a generator", "enter the lock by `with` in its body"),
    (
        inspect.iscoroutinefunction,
        _ASYNC,
        "use the lock of an AsyncClient, as its decorator or by `async with` in its body",
    ),
    (
        inspect.isasyncgenfunction,
        "an async generator",
        "enter the lock of an AsyncClient by `async with` in its body",
    ),
)


def _kind_of(function: Any) -> tuple[str, str] | None:
    """The kind of a function whose body runs after the call, and the way to lock it."""
    # An object that can be called has its function in its class.
    for each in (function, type(function).__call__):
        for is_kind, kind, instead in _KINDS:
            if is_kind(each):
                return kind, instead
    return None


def check_sync(function: Callable[..., Any]) -> None:
    """Raises ``TypeError`` for a function whose body runs after the call."""
    found = _kind_of(function)
    if found is not None:
        raise _refused(function, *found)


def check_async(function: Callable[..., Any]) -> None:
    """Raises ``TypeError`` for a function that is not ``async def``."""
    found = _kind_of(function) or _kind_of(inspect.unwrap(function))
    if found is None:
        name = _name_of(function)
        raise TypeError(
            f"{name} is not async def, which the lock of an AsyncClient decorates; make it that, or"
            " use the lock of a Client"
        )
    if found[0] != _ASYNC:
        raise _refused(function, *found)


def _refused(function: Callable[..., Any], kind: str, instead: str) -> TypeError:
    name = _name_of(function)
    return TypeError(
        f"{name} is {kind}: its body would run after the call, without the lock; {instead}"
    )


def _name_of(function: Any) -> str:
    # The repr of a partial has its arguments.
    return str(getattr(function, "__qualname__", type(function).__name__))
