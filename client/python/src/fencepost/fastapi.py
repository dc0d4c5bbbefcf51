"""A dependency of FastAPI that holds a lock; from ``pip install fencepost[fastapi]``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from .aio import AsyncClient, AsyncLease
from .errors import FencepostError, Invalid
from .frameworks import LockOf, name_of, refusal_of
from .validation import Seconds


def locked(
    client: AsyncClient, lock: LockOf, *, ttl: Seconds = 15, wait: Seconds | None = 5
) -> Any:
    """Holds a lock of the path for a request: ``Annotated[AsyncLease, locked(client, "a/{id}")]``.

    For ``async def`` alone. The loss of the lock cancels the request, also before its response is
    sent. ``lock`` is a template of the path's parameters, or a function of them; a path that makes
    no name of a lock is replied 404. ``handle_refusals`` turns the errors into replies.
    """

    async def holding(request: Request) -> AsyncIterator[AsyncLease]:
        try:
            name = name_of(lock, **request.path_params)
        except Invalid as error:
            raise HTTPException(404, str(error)) from None
        async with client.lock(name, ttl=ttl, wait=wait) as lease:
            yield lease

    # The release, which may find the lock lost, comes before the response.
    return Depends(holding, use_cache=False, scope="function")


def handle_refusals(app: FastAPI) -> None:
    """Replies 503 with ``Retry-After`` to requests that end with an error of this package."""

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, FencepostError):
            raise error
        body, headers = refusal_of(error)
        return JSONResponse(body, 503, headers)

    app.add_exception_handler(FencepostError, refuse)
