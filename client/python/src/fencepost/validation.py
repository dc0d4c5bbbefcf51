"""Rules of values, checked before anything is sent. Each refusal is one ``Invalid``."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any, Union

from .errors import Invalid
from .timing import TTL_MS_MAX

#: Seconds as a number, or a timedelta.
Seconds = Union[float, int, timedelta]

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,256}\Z")
_OP_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_WAIT_MS_MAX = 168 * 3_600_000
#: A wait without an end: longer than any process lives, and exact in a double.
ENDLESS_MS = 1 << 50
_METADATA_BYTES_MAX = 4096
_PERMITS_MAX = 1024
#: Most locks that one call acquires.
LOCKS_MAX = 64
TOKEN_MAX = 999_999_999_999_999


def refuse(name: str, value: object, rule: str) -> Invalid:
    """The error of a setting or an argument that breaks a rule."""
    shown = str(value)
    return Invalid(f"{name} {shown[:100]!r} {rule}")


def lock_name(name: object) -> str:
    """Checks the name of a lock."""
    return _name("lock name", name)


def object_key(key: object) -> str:
    """Checks the key of an object, which has the grammar of lock names."""
    return _name("key", key)


def _name(what: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise refuse(what, name, "must have 1 to 256 bytes of A-Z a-z 0-9 . _ : / -")
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        raise refuse(what, name, "must have no empty, . or .. segment")
    return name


def milliseconds(name: str, value: object, least: int, most: int) -> int:
    """Converts seconds or a timedelta to whole milliseconds, within bounds."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A value that is not finite fails the comparison.
    if not is_number or not least <= value * 1000 <= most:  # type: ignore[operator]
        raise refuse(name, value, f"must be {least / 1000:g} to {most / 1000:g} seconds")
    return round(value * 1000)  # type: ignore[operator]


def ttl_ms(value: object) -> int:
    """Checks a time to live: 1 ms to a day."""
    return milliseconds("ttl", value, 1, TTL_MS_MAX)


def wait_ms(value: object) -> int:
    """Checks a wait: 0 to 168 hours, or ``None`` for one without an end."""
    if value is None:
        return ENDLESS_MS
    try:
        return milliseconds("wait", value, 0, _WAIT_MS_MAX)
    except Invalid as error:
        raise Invalid(f"{error}, or None for a wait without an end") from None


def limit_ms(name: str, value: Seconds | None) -> int | None:
    """Checks a limit of a lease: at least 1 ms."""
    return None if value is None else milliseconds(name, value, 1, _WAIT_MS_MAX)


def text(name: str, value: object) -> str:
    """Checks an owner, an incarnation or a reason."""
    if not isinstance(value, str) or not 1 <= _utf8_bytes(name, value) <= 256:
        raise refuse(name, value, "must be a text of 1 to 256 bytes")
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value):
        raise refuse(name, value, "must be without control characters")
    return value


def _utf8_bytes(name: str, value: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        # Halves of a pair, which the bytes of a variable that are no UTF-8 become, too.
        raise refuse(name, ascii(value), "must be text that UTF-8 can encode") from None


def mode_of(mode: object, size: int | None) -> int | None:
    """Checks the kind of a lease, and returns the size of a semaphore."""
    if mode not in ("exclusive", "shared", "permit"):
        raise refuse("mode", mode, "must be exclusive, shared or permit")
    if mode != "permit":
        if size is not None:
            raise refuse("size", size, f"is of permits alone, and the mode is {mode}")
        return None
    is_whole = isinstance(size, int) and not isinstance(size, bool)
    if not is_whole or not 1 <= size <= _PERMITS_MAX:  # type: ignore[operator]
        raise refuse("size", size, f"must be 1 to {_PERMITS_MAX} permits")
    return size


def metadata(value: Any) -> Any:
    """Checks metadata: JSON of at most 4096 bytes."""
    try:
        encoded = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse("metadata", type(value).__name__, f"must be JSON: {error}") from None
    if _utf8_bytes("metadata", encoded) > _METADATA_BYTES_MAX:
        raise refuse("metadata", encoded, f"must have at most {_METADATA_BYTES_MAX} bytes of JSON")
    return value


def token(name: str, value: int | None) -> int | None:
    """Checks a fencing token."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TOKEN_MAX:
        raise refuse(name, value, f"must be 1 to {TOKEN_MAX}")
    return value


def identifier(name: str, value: str | None) -> str | None:
    """Checks the id of a lease or a session, a UUID."""
    if value is None:
        return None
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise refuse(name, value, "must be a UUID") from None


def op_id(value: str | None) -> str:
    """Checks the name of an operation, or makes one."""
    if value is None:
        return str(uuid.uuid4())
    if not isinstance(value, str) or not _OP_ID.match(value):
        raise refuse("op_id", value, "must have 1 to 128 bytes of A-Z a-z 0-9 . _ : -")
    return value


def body(value: object) -> bytes:
    """Checks the value of an object, and encodes a text as UTF-8."""
    if isinstance(value, str):
        _utf8_bytes("value", value)
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        kind = type(value).__name__
        raise Invalid(f"value has the type {kind}; write bytes or str, such as json.dumps(value)")
    return bytes(value)


def header(name: str, value: str) -> str:
    """Checks a value that a header must carry."""
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
        raise refuse(name, value, "must be printable ASCII, for a header")
    return value
