"""What the integrations of frameworks share: names of locks, and replies to refused requests."""

from __future__ import annotations

import math
from typing import Any, Callable, Union

from . import validation
from .errors import FencepostError, Invalid

#: The name of a lock: a template such as ``orders/{order}``, or a function of the arguments.
LockOf = Union[str, Callable[..., str]]

#: Methods of HTTP that change nothing.
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))


def name_of(lock: LockOf, *args: Any, **kwargs: Any) -> str:
    """The lock of these arguments; raises ``Invalid`` if they make no name of one."""
    try:
        name = lock.format(*args, **kwargs) if isinstance(lock, str) else lock(*args, **kwargs)
    except (KeyError, IndexError) as error:
        raise Invalid(f"the lock {lock!r} needs {error}, which the call does not have") from None
    return validation.lock_name(name)


def refusal_of(error: FencepostError) -> tuple[dict[str, str | None], dict[str, str]]:
    """Body and headers of the reply 503 to a request whose lock is held, lost or unreachable."""
    after = str(math.ceil(error.retry_after or 1))
    return {"detail": str(error), "code": error.code}, {"retry-after": after}
