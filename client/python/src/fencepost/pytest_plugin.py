"""Fixtures of pytest, from ``pip install fencepost[pytest]``: a server in memory, its client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .client import Client
    from .testing import FakeServer


@pytest.fixture
def fencepost_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A ``FakeServer`` that every client which is made in the test finds by its environment."""
    # Loaded by the first test that needs it, and not by each run of pytest.
    from .testing import FakeServer

    with FakeServer() as server:
        for name in [name for name in os.environ if name.startswith("FENCE_")]:
            monkeypatch.delenv(name)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def fencepost_client(fencepost_server: FakeServer) -> Iterator[Client]:
    """A ``Client`` of ``fencepost_server``."""
    with fencepost_server.client(owner="pytest") as client:
        yield client
