"""The events of the synchronous client."""

from __future__ import annotations

from collections.abc import Iterator

from .background import Background
from .core import Core
from .events import Event, EventStream


class Events:
    """Stream of events; ``for`` yields them for ever. Close it, or leave its block."""

    def __init__(self, background: Background, stream: EventStream) -> None:
        self._background = background
        self._stream = stream

    @property
    def last_id(self) -> str | None:
        """The position: ``after`` of a stream that continues here."""
        return self._stream.last_id

    def __iter__(self) -> Iterator[Event]:
        items = self._stream.__aiter__()

        async def following(_: Core) -> Event | None:
            async for event in items:
                return event
            return None

        while True:
            event = self._background.run(following)
            if event is None:
                return
            yield event

    def close(self) -> None:
        """Closes the connection; a loop over the stream ends."""
        self._background.run(lambda _: self._stream.close())

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
