"""A lock server and a guard in memory, for unit tests: ``with FakeServer() as server``.

They have the contract of the real ones over HTTP, on a free port of the loopback interface: queues,
expiry, tokens that rise, writes that are refused when they are stale. There is no disk, no TLS, no
access file and no port of Redis or PostgreSQL.
"""

from .server import FakeServer

__all__ = ["FakeServer"]
