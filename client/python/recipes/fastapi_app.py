"""A FastAPI application whose changes of an order hold its lock: ``uvicorn fastapi_app:app``."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from fencepost import AsyncClient, AsyncLease, FencepostError

client = AsyncClient()
#: Time to live of a lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


class LockMiddleware:
    """Holds ``orders/ID`` for each request that changes ``/orders/ID``.

    Pure ASGI, so that the loss of the lock cancels the task that handles the request. A request
    whose lock is held elsewhere, or lost before its response began, is replied 503.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        order = re.match(r"/orders/([A-Za-z0-9]+)", scope.get("path", ""))
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS") or not order:
            return await self.app(scope, receive, send)
        has_begun = False

        async def sending(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with client.lock(f"orders/{order.group(1)}", ttl=TTL_S, wait=5) as lease:
                scope["lease"] = lease
                await self.app(scope, receive, sending)
        except FencepostError as error:
            if has_begun:
                raise
            body = json.dumps({"detail": str(error), "code": error.code}).encode()
            after = str(math.ceil(error.retry_after or 1)).encode()
            headers = [(b"content-type", b"application/json"), (b"retry-after", after)]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await client.close()


app = FastAPI(lifespan=lifespan)
app.add_middleware(LockMiddleware)


@app.post("/orders/{order}")
async def pay(order: str, request: Request, seconds: float = 0) -> dict[str, int]:
    """An example."""
    lease: AsyncLease = request.scope["lease"]
    await lease.put(f"orders/{order}", "paying")
    await asyncio.sleep(seconds)
    await lease.put(f"orders/{order}", "paid")
    return {"token": lease.token}
