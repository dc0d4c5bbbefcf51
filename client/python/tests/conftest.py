from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from servers import FaultProxy, Site

from fencepost import Client
from fencepost.timing import Window

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
def direct(site: Site) -> Iterator[Client]:
    with Client(site.server, site.guard, owner="direct", environment={}) as made:
        yield made


@pytest.fixture
def faulty(proxy: FaultProxy, guard_proxy: FaultProxy) -> Iterator[Client]:
    with Client(proxy.url, guard_proxy.url, owner="faulty", environment={}) as made:
        yield made


@pytest.fixture
def soon_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals and heartbeats follow 0.1 s after the last, whatever the time to live is.

    A revocation is noticed at once, and a lease that lasts a minute outlives a stall of the test.
    """
    monkeypatch.setattr(Window, "renew_at_ms", property(lambda window: window.sent_at_ms + 100))


@pytest.fixture
def name() -> str:
    """A lock of this test alone."""
    return f"test/{next(_names)}"
