"""Settings of a client: arguments, then ``FENCE_…`` variables, then the TOML file."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
import ssl
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .errors import Invalid
from .secret import Secret, SecretBytes, hidden_url
from .validation import text

DEFAULT_SERVER = "http://127.0.0.1:7420"
DEFAULT_GUARD = "http://127.0.0.1:7421"

_FILE_BYTES_MAX = 64 << 10
_NAMES = (
    "server guard owner incarnation auth_file ca_file client_cert client_key insecure_http".split()
)
#: Further settings of every ``fence`` command, which this package does not have.
_COMMAND_KEYS = ("log", "color", "output")


@dataclass(frozen=True)
class Settings:
    """Checked settings of a client. Its ``repr`` shows no secret."""

    server: str
    guard: str
    owner: str
    is_owner_given: bool
    incarnation: str
    bearer: str | None
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"Settings(server={self.server!r}, guard={self.guard!r}, owner={self.owner!r})"


class Variables:
    """Variables of the environment, which no representation shows."""

    def __init__(self, found: Mapping[str, str] | None = None) -> None:
        self._found = os.environ if found is None else found

    def get(self, name: str) -> str | None:
        """The value of a variable; ``None`` if it is empty."""
        return self._found.get(name) or None


def read(given: Mapping[str, Any], variables: Variables, token: Secret | None = None) -> Settings:
    """Reads and checks the settings; ``given`` holds the caller's, ``None`` where unset.

    With ``token``, the bearer token itself, ``auth_file`` is not read. Raises ``Invalid``, with the
    origin of the value.
    """
    found = {name: value for name, value in _of_variables(variables).items() if value is not None}
    config = given.get("config") or variables.get("FENCE_CONFIG")
    if config:
        found = {**_of_file(config), **found}
    found.update({name: value for name, value in given.items() if value is not None})
    insecure = _switch(found.get("insecure_http", False))
    servers = [
        address(found.get(name) or default, insecure)
        for name, default in (("server", DEFAULT_SERVER), ("guard", DEFAULT_GUARD))
    ]
    # Files that are named are checked, whatever the addresses.
    is_named = any(found.get(name) for name in ("ca_file", "client_cert", "client_key"))
    is_tls = is_named or any(url.startswith("https://") for url in servers)
    owner = found.get("owner")
    if token is None and found.get("auth_file"):
        token = _bearer_of(found["auth_file"])
    return Settings(
        server=servers[0],
        guard=servers[1],
        owner=text("owner", default_owner() if owner is None else owner),
        is_owner_given=owner is not None,
        incarnation=text("incarnation", found.get("incarnation") or incarnation()),
        bearer=None if token is None else bearer(token),
        tls=_tls(found) if is_tls else None,
    )


def _variable(variables: Variables, name: str) -> str | None:
    """A variable or the content of its ``_FILE`` twin; an empty value counts as not set."""
    file = variables.get(f"{name}_FILE")
    value = hidden_url(variables.get(name))
    if file is None:
        return value
    if value is not None:
        raise Invalid(f"{name} and {name}_FILE are both set; unset one of them")
    return hidden_url(_read(file, f"{name}_FILE").strip())


def _of_variables(variables: Variables) -> dict[str, str | None]:
    found = {name: _variable(variables, f"FENCE_{name.upper()}") for name in _NAMES}
    if found["guard"] is None:
        found["guard"] = _variable(variables, "FENCE_STORE")
    return found


def _of_file(path: str) -> dict[str, Any]:
    """Reads the TOML file; an unknown key is an error."""
    content = {
        name: hidden_url(value) for name, value in _toml(_read(path, "config"), path).items()
    }
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name in found:
            raise Invalid(f"file {path}: {key!r} is there twice; keep one of them")
        if name not in _NAMES and name not in _COMMAND_KEYS:
            known = ", ".join(_NAMES)
            raise Invalid(f"file {path}: unknown key {key!r}; known keys: {known}")
        if name in _NAMES and not isinstance(value, (str, bool)):
            raise Invalid(f"file {path}: {key} must be a text, not {value!r}")
        found[name] = value
    return {name: value for name, value in found.items() if name in _NAMES}


if sys.version_info >= (3, 11):
    import tomllib

    def _toml(content: str, path: str) -> dict[str, Any]:
        try:
            return tomllib.loads(content)
        except tomllib.TOMLDecodeError as error:
            # Its text names a place, and repeats no value: that may be a secret.
            raise Invalid(f"file {path}: is not TOML: {error}") from None

else:
    _LINE = re.compile(r'([A-Za-z0-9_-]+)\s*=\s*(?:"([^"\\]*)"|(true|false))\s*(?:#.*)?\Z')

    def _toml(content: str, path: str) -> dict[str, Any]:
        """Reads lines of ``key = "value"``, all that these settings need; no tables."""
        found: dict[str, Any] = {}
        for number, line in enumerate(content.splitlines(), 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            match = _LINE.match(stripped)
            if match is None or match.group(1) in found:
                raise Invalid(
                    f'file {path}, line {number}: write key = "value", each key once (all of TOML'
                    " is read from Python 3.11)"
                )
            key, quoted, switch = match.groups()
            found[key] = switch == "true" if quoted is None else quoted
        return found


def _read(path: str, name: str) -> Secret:
    try:
        with open(path, "rb") as file:
            content = SecretBytes(file.read(_FILE_BYTES_MAX + 1))
    except OSError as error:
        raise Invalid(f"{name} {path}: {error.strerror}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise Invalid(f"{name} {path}: is longer than {_FILE_BYTES_MAX} bytes")
    try:
        return Secret(content.decode())
    except UnicodeDecodeError:
        raise Invalid(f"{name} {path}: is no UTF-8 text") from None


def _switch(value: Any) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise Invalid(f"FENCE_INSECURE_HTTP {value!r} must be true or false")


def address(url: str, insecure_http: bool = False) -> str:
    """Checks the address of a server, and removes its trailing slash.

    Plain HTTP to another machine is refused, unless ``insecure_http`` accepts it.
    """
    shown = f"***@{url.rsplit('@', 1)[1]}" if "@" in url else url

    def refuse(rule: str) -> Invalid:
        example = "for example https://fence.example:7420"
        return Invalid(f"server address {shown!r} {rule}, {example}")

    if "@" in url:
        raise refuse("must have neither credentials nor a query")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise refuse("must be a URL with a port from 1 to 65535") from None
    if parts.scheme not in ("http", "https"):
        raise refuse("must begin with http:// or https://")
    if not parts.hostname or not re.fullmatch(r"[!-~]+", url):
        raise refuse("must name a host")
    if "?" in url or "#" in url:
        raise refuse("must have neither credentials nor a query")
    if port == 0:
        raise refuse("must have a port from 1 to 65535")
    if parts.scheme == "http" and not insecure_http and not is_loopback(parts.hostname):
        raise Invalid(
            f"{url} is plain HTTP to another machine, so bearer and fencing tokens could be read on"
            " the way; write https://, or accept that with insecure_http (FENCE_INSECURE_HTTP)"
        )
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """``True`` for ``localhost`` and loopback addresses; other names may be of any machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer_of(path: str) -> Secret:
    return Secret(_read(path, "bearer token file").strip())


def bearer(secret: str) -> str:
    """Checks a bearer token: one word of 1 to 256 printable characters."""
    if not re.fullmatch(r"[!-~]{1,256}", secret):
        raise Invalid("a bearer token is one word of 1 to 256 printable characters")
    return secret


def _tls(found: Mapping[str, Any]) -> ssl.SSLContext:
    """The CA that is trusted, by default those of the system, and the certificate presented."""
    ca, cert, key = found.get("ca_file"), found.get("client_cert"), found.get("client_key")
    if (cert is None) != (key is None):
        raise Invalid("client_cert and client_key belong together: set both or neither")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"ca_file {ca}: cannot be used: {error}") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(f"client_cert {cert}, client_key {key}: not usable: {error}") from None
    return context


def default_owner() -> str:
    """Owner of this process, for people to read: ``user@host:pid``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid{os.getuid()}" if hasattr(os, "getuid") else "user"

    def short(part: str) -> str:
        # A long host name must not displace the process id.
        return "".join(char for char in part if char.isprintable())[:24]

    return f"{short(user)}@{short(socket.gethostname())}:{os.getpid()}"


_incarnation: dict[int, str] = {}


def incarnation() -> str:
    """Default incarnation of this process: a random id, made once."""
    return _incarnation.setdefault(os.getpid(), uuid.uuid4().hex)
