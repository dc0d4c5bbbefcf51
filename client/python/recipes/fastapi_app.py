"""A FastAPI application whose changes of an order hold its lock: ``uvicorn fastapi_app:app``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI

from fencepost import AsyncClient, AsyncLease
from fencepost.fastapi import handle_refusals, locked

client = AsyncClient()
#: Time to live of a lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))
OrderLease = Annotated[AsyncLease, locked(client, "orders/{order}", ttl=TTL_S)]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await client.close()


app = FastAPI(lifespan=lifespan)
handle_refusals(app)


@app.post("/orders/{order}")
async def pay(order: str, lease: OrderLease, seconds: float = 0) -> dict[str, int]:
    """An example."""
    await lease.put(f"orders/{order}", "paying")
    await asyncio.sleep(seconds)
    await lease.put(f"orders/{order}", "paid")
    return {"token": lease.token}
