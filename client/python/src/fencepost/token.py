"""The ``Fencing-Token`` header value and its credential: pure functions over text."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from .errors import Invalid
from .secret import Secret, SecretBytes
from .validation import TOKEN_MAX, lock_name

#: Most tokens of one credential.
TOKENS_MAX = 16
_PREFIX = "fc1_"
_HEADER_BYTES_MAX = 1024
_CREDENTIAL_BYTES_MAX = 64 << 10

_ITEM = re.compile(r" *(-?[0-9]{1,15})(?![0-9.])")
_PARAMETER = re.compile(
    r'; *([a-z*][a-z0-9_.*-]*)=(?:"((?:[ !#-\[\]-~]|\\["\\])*)"|:([A-Za-z0-9+/=]*):)'
)
_WORD = {"ns": 64, "kid": 32}


@dataclass(frozen=True)
class FencingToken:
    """A parsed header value. ``signature`` is the base64 text of the MAC; ``None`` if unsigned.

    ``str`` is the header value, which is a credential; ``repr`` shows no signature.
    """

    token: int
    lock: str
    lease: str
    namespace: str = "default"
    key_id: str | None = None
    signature: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        text = f'{self.token};lock="{self.lock}";lease="{self.lease}";ns="{self.namespace}"'
        if self.signature is not None:
            text += f';kid="{self.key_id}";sig=:{self.signature}:'
        return text


def _refuse(rule: str) -> Invalid:
    # The text may be another password, so it is not repeated.
    return Invalid(f"the Fencing-Token value {rule}")


def parse(header: str) -> FencingToken:
    """Parses a header value; the signature is not verified, as only servers have the key."""
    header = Secret(header) if isinstance(header, str) else header
    if not isinstance(header, str) or len(header.encode("utf-8", "replace")) > _HEADER_BYTES_MAX:
        raise _refuse(f"is longer than {_HEADER_BYTES_MAX} bytes")
    item = _ITEM.match(header)
    if item is None or not 1 <= int(item.group(1)) <= TOKEN_MAX:
        raise _refuse(f"must begin with a token from 1 to {TOKEN_MAX}")
    fields: dict[str, str] = {}
    at = item.end()
    while at < len(header):
        parameter = _PARAMETER.match(header, at)
        if parameter is None:
            if header[at:].strip(" "):
                raise _refuse(f"is malformed at byte {at}")
            break
        name = parameter[1]
        is_mac = parameter[3] is not None
        text = Secret(parameter[3] if is_mac else re.sub(r"\\(.)", r"\1", parameter[2]))
        at = parameter.end()
        # Its representation has the signature.
        del parameter
        if name not in ("lock", "lease", "ns", "kid", "sig") or name in fields:
            raise _refuse(f"has a parameter {name} that is unknown or there twice")
        if (name == "sig") != is_mac:
            raise _refuse(f"has a parameter {name} of the wrong type")
        fields[name] = _value(name, text)
    for name in ("lock", "lease"):
        if name not in fields:
            raise _refuse(f"lacks the parameter {name}")
    if ("kid" in fields) != ("sig" in fields):
        raise _refuse("has only one of kid and sig")
    namespace = fields.get("ns", "default")
    number = int(item.group(1))
    key_id, signature = fields.get("kid"), fields.get("sig")
    return FencingToken(number, fields["lock"], fields["lease"], namespace, key_id, signature)


def _value(name: str, text: str) -> str:
    if name == "lock":
        return lock_name(text)
    if name == "lease":
        try:
            lease = uuid.UUID(text)
        except ValueError:
            raise _refuse("has a lease that is no UUID") from None
        if lease.int == 0:
            raise _refuse("has the nil UUID as lease")
        return str(lease)
    if name == "sig":
        try:
            mac = SecretBytes(base64.b64decode(text, validate=True))
        except binascii.Error:
            raise _refuse("has a sig that is not base64") from None
        if len(mac) != 32:
            raise _refuse("has a sig of other than 32 bytes")
        return Secret(base64.b64encode(mac).decode())
    if not re.match(rf"[A-Za-z0-9._-]{{1,{_WORD[name]}}}\Z", text):
        raise _refuse(f"has a {name} that is no word of 1 to {_WORD[name]} of A-Z a-z 0-9 . _ -")
    return text


def credential_of(header: str) -> str:
    """The credential of a header value: what goes where a protocol has a password."""
    return _PREFIX + base64.urlsafe_b64encode(header.encode()).rstrip(b"=").decode()


def join(headers: Iterable[str]) -> str:
    """One credential of 1 to 16 header values, each of another lock."""
    tokens = [parse(header) for header in headers]
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise Invalid(f"a credential has 1 to {TOKENS_MAX} tokens, not {len(tokens)}")
    locks = [token.lock for token in tokens]
    twice = next((lock for lock in locks if locks.count(lock) > 1), None)
    if twice is not None:
        raise Invalid(f"a credential has one token of a lock, and two are of {twice}")
    text = Secret(".".join(credential_of(str(token)) for token in tokens))
    if len(text) > _CREDENTIAL_BYTES_MAX:
        raise Invalid(f"a credential has at most {_CREDENTIAL_BYTES_MAX} bytes, not {len(text)}")
    return text
