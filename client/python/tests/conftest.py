from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from servers import FaultProxy, Site

_names = itertools.count(1)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    """Before the lock server."""
    proxy = FaultProxy(site.server)
    yield proxy
    proxy.stop()


@pytest.fixture
def guard_proxy(site: Site) -> Iterator[FaultProxy]:
    proxy = FaultProxy(site.guard)
    yield proxy
    proxy.stop()


@pytest.fixture
def name() -> str:
    """A lock of this test alone."""
    return f"test/{next(_names)}"
