"""Events of locks, as server-sent events that are resumed where they broke."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import timing, validation
from .attempts import jitter
from .core import Core
from .errors import FencepostError, InternalError, OutcomeUnknown, Unavailable
from .transport import EventBody, Failure, NoReply, encoded, within

_OPEN_S = 10.0
#: Longest silence of a live server, which sends at least a comment every 15 s.
_SILENCE_S = 45.0
#: Longest accepted event: ten times a server's longest one.
_EVENT_BYTES_MAX = 64 << 10

#: Kinds of the events that end a lease.
ENDS = frozenset(("expired", "superseded", "released", "revoked", "session-ended"))


@dataclass(frozen=True)
class Event:
    """Something that happened to a lock.

    ``kind`` is the server's word (``granted``, ``queued``, ``expired``, ``gap``, …), or ``broken``
    and ``resumed`` for the connection: no events arrive in between. ``id`` resumes the stream
    behind this event. Events inform; decide by tokens.
    """

    kind: str
    lock: str | None = None
    id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class Parser:
    """Cuts a stream into events; keeps an incomplete one."""

    def __init__(self) -> None:
        self._buffer = b""
        self._id: str | None = None
        self._data = ""

    def push(self, chunk: bytes) -> list[Event]:
        """Adds a chunk and returns the events that it completes; raises ``InternalError``."""
        events = []
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            event = self._line(line.rstrip(b"\r"))
            if event is not None:
                events.append(event)
        if len(self._buffer) + len(self._data) > _EVENT_BYTES_MAX:
            limit = f"more than {_EVENT_BYTES_MAX} bytes"
            raise InternalError(f"events: the server sent an event of {limit}")
        return events

    def _line(self, line: bytes) -> Event | None:
        if line:
            # Other fields repeat the data, and comments are keep-alives.
            name, _, value = line.decode("utf-8", "replace").partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "id":
                self._id = value
            elif name == "data":
                self._data += value
            return None
        data, self._data = self._data, ""
        event_id, self._id = self._id, None
        if not data:
            return None
        try:
            read = json.loads(data)
            lock = read.get("lock")
            return Event(str(read["kind"]), lock if lock is None else str(lock), event_id, read)
        except (ValueError, KeyError, AttributeError):
            raise InternalError(f"events: the server sent no valid event: {data[:80]!r}") from None


class EventStream:
    """Stream of events; ``async for`` yields them for ever. Close it, or leave its block."""

    def __init__(self, core: Core, query: str, after: str | None) -> None:
        self._core = core
        self._query = query
        #: The position: ``after`` of a stream that continues here.
        self.last_id = after
        self._body: EventBody | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls, core: Core, prefix: str | None, lock: str | None, after: str | None
    ) -> EventStream:
        """Opens the stream of a prefix or a lock; raises as a read does."""
        core.check()
        if after is not None:
            validation.header("after", after)
        if lock is not None:
            query = f"lock={encoded(validation.lock_name(lock))}"
        else:
            query = f"prefix={encoded(prefix or '')}"
        stream = cls(core, query, after)
        await stream._connect()
        return stream

    async def _connect(self) -> None:
        path = f"/v1/events?{self._query}"
        try:
            opened = self._core.locks.open_stream(path, self.last_id)
            self._body = await within(_OPEN_S, opened)
        except asyncio.TimeoutError:
            raise Unavailable(f"events: no reply within {_OPEN_S:g} s") from None
        except Failure as failure:
            raise failure.error("events", changes=False) from None

    async def __aiter__(self) -> AsyncIterator[Event]:
        parser = Parser()
        while not self._is_closed:
            if self._body is None:
                await self._connect_again()
                parser = Parser()
                yield Event("resumed")
                continue
            try:
                chunk = await self._body.chunk(_SILENCE_S)
            except NoReply as failure:
                why: str | None = str(failure)
            else:
                why = "the server has ended the stream" if chunk is None else None
            if why is not None:
                await self._drop()
                if not self._is_closed:
                    yield Event("broken", data={"why": why})
                continue
            for event in parser.push(chunk or b""):
                self.last_id = event.id or self.last_id
                yield event

    async def _connect_again(self) -> None:
        """Connects about every second until it succeeds or is refused."""
        attempt = 0
        while True:
            attempt += 1
            await asyncio.sleep(timing.pause_ms(attempt, jitter()) / 1000)
            try:
                return await self._connect()
            except FencepostError as error:
                if not isinstance(error, (Unavailable, OutcomeUnknown)):
                    raise

    async def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.close()

    async def close(self) -> None:
        """Closes the connection; a loop over the stream ends."""
        self._is_closed = True
        await self._drop()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
