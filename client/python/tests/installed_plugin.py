"""Run by ``check`` with the installed package, whose entry point brings the fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fencepost import Client, LeaseLost
from fencepost.testing import FakeServer


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FENCE_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("FENCE_AUTH_FILE", "/nowhere")
    yield


@pytest.mark.usefixtures("_elsewhere")
def test_a_client_of_the_program_finds_the_server(
    fencepost_server: FakeServer, fencepost_client: Client
) -> None:
    assert "FENCE_AUTH_FILE" not in os.environ
    with Client() as own:
        assert own.lock("a", ttl=600).acquire(blocking=False) is not None
    with pytest.raises(LeaseLost), fencepost_client.lock("b", ttl=600) as lease:
        lease.put("b", "1")
        fencepost_server.lose(lease)
    assert fencepost_server.value("b") == b"1"
