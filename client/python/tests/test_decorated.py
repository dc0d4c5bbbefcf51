"""A lock decorates only functions whose body runs while it is held."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any, Callable

import pytest
from servers import Site

from fencepost import AsyncClient, Client
from fencepost.rq import locked

ran: list[str] = []


def plain(*_: object) -> str:
    ran.append("plain")
    return "plain"


def generator(*_: object) -> Iterator[None]:
    ran.append("generator")
    yield


async def coroutine(*_: object) -> str:
    ran.append("coroutine")
    return "coroutine"


async def async_generator(*_: object) -> AsyncIterator[None]:
    ran.append("async_generator")
    yield


class Job:
    async def __call__(self, *_: object) -> str:
        return await coroutine()


@functools.wraps(coroutine)
def counted(*args: object) -> Any:
    return coroutine(*args)


LATER = [generator, coroutine, async_generator, functools.partial(coroutine, 1), Job()]


@pytest.mark.parametrize("function", LATER)
def test_a_body_that_runs_after_the_call_is_refused(
    direct: Client, name: str, function: Callable[..., Any]
) -> None:
    decorators = [direct.lock(name), locked(name)]
    for decorate in decorators:
        with pytest.raises(
            TypeError, match="would run after the call, without the lock"
        ) as refused:
            decorate(function)
        is_async = function is not generator
        assert ("AsyncClient" in str(refused.value)) == is_async
    assert direct.lock(name)(plain)() == "plain" and direct.show(name).history[0].lease_id
    assert ran == ["plain"]
    ran.clear()


def test_an_async_client_decorates_coroutines_alone(site: Site, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(site.server, site.guard, environment={}) as client:
            for function in (plain, generator, async_generator, functools.partial(plain, 1)):
                with pytest.raises(TypeError, match=r"not async def|would run after the call"):
                    client.lock(name)(function)  # type: ignore[arg-type]
            for ended, function in enumerate((coroutine, LATER[3], Job(), counted), 1):
                assert await client.lock(name)(function)() == "coroutine"
                assert len((await client.show(name)).history) == ended
        assert ran == ["coroutine"] * 4
        ran.clear()

    asyncio.run(work())
