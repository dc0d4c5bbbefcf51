"""No local variable of this package shows a credential: error reports have those of each frame."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from servers import FaultProxy, Site

import fencepost
from fencepost import AsyncClient, Client, FencepostError, settings, token
from fencepost.secret import Secret

BEARER = "s3cret-word"
PASSWORD = "pa55word"


def shown(error: BaseException | None) -> Iterator[str]:
    """The locals of each frame of the package, also of the errors behind this one."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if "/src/fencepost/" in trace.tb_frame.f_code.co_filename:
                for name, value in trace.tb_frame.f_locals.items():
                    yield f"{trace.tb_frame.f_code.co_name}: {name}={value!r}"
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def check_hidden(error: BaseException, *secrets: str) -> None:
    texts = [*shown(error), f"{error} {error!r}"]
    assert len(texts) > 1
    assert [text for text in texts if any(secret in text for secret in secrets)] == []


def secrets_of(lease: Any) -> list[str]:
    signature = lease.fencing_token.split("sig=:")[1][:16]
    return [str(lease.fencing_token), lease.fencing_credential[:40], signature, BEARER]


def kinds_of_errors(
    client: Any, site: Site, lease: Any, proxy: FaultProxy, guard_proxy: FaultProxy
) -> Iterator[tuple[type[FencepostError], Callable[[], Any]]]:
    """A call for each kind of error; the lease is revoked in between."""
    name, token_of = lease.lock, lease.fencing_token
    yield fencepost.Contended, lambda: client.lock(name).acquire()
    yield fencepost.PreconditionFailed, lambda: lease.put(name, "1", if_match='"none"')
    grant = {"fencing_token": str(token_of), "lock": name, "lease_id": lease.lease_id, "token": 0}
    for content in (json.dumps(grant), json.dumps([grant]), json.dumps(grant)[:-1]):
        proxy.fault("/acquire", "forge-reply", content=content.encode())
        yield FencepostError, client.lock(f"{name}/other", patience=0).acquire
    guard_proxy.fault("/v1/objects", "forge-reply", status=503)
    yield fencepost.Unavailable, lambda: lease.get(name)
    guard_proxy.fault("/v1/objects", "drop-reply", times=3)
    yield fencepost.OutcomeUnknown, lambda: lease.put(name, "1")
    guard_proxy.fault("/v1/objects", "forge-reply", status=404)
    yield fencepost.Invalid, lambda: lease.get(name)
    with Client(site.server, site.guard, environment={}) as other:
        other.revoke(name, "test")
        with other.lock(name) as newer:
            newer.put(name, "2")
            yield fencepost.Stale, lambda: lease.put(name, "1")
            yield fencepost.TakeoverRefused, client.lock(name, takeover=True).acquire
    yield fencepost.LeaseLost, lease.release


def test_no_frame_shows_a_credential(
    site: Site, proxy: FaultProxy, guard_proxy: FaultProxy
) -> None:
    options = {"environment": {}, "token": BEARER, "owner": "one"}
    with Client(proxy.url, guard_proxy.url, **options) as client:
        lease = client.lock("frames", ttl=600).acquire()
        for kind, call in kinds_of_errors(client, site, lease, proxy, guard_proxy):
            with pytest.raises(kind) as refused:
                call()
            check_hidden(refused.value, *secrets_of(lease))

    async def work() -> None:
        async with AsyncClient(proxy.url, guard_proxy.url, **options) as client:
            lease = await client.lock("frames", ttl=600).acquire()
            for kind, call in kinds_of_errors(client, site, lease, proxy, guard_proxy):
                with pytest.raises(kind) as refused:
                    await call()
                check_hidden(refused.value, *secrets_of(lease))

    asyncio.run(work())


def test_no_frame_shows_a_reply_that_breaks_off(direct: Client, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            connection.recv(1 << 16)
            part = b'{"fencing_token":"' + PASSWORD.encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + part)
            connection.close()

        thread = threading.Thread(target=reply)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with Client(url, environment={}) as client:
            with pytest.raises(fencepost.OutcomeUnknown) as refused:
                client.lock(name, patience=0).acquire()
        thread.join()
    check_hidden(refused.value, PASSWORD)


def test_no_frame_shows_a_secret_setting(tmp_path: Path) -> None:
    bearer, config = tmp_path / "bearer", tmp_path / "config"
    bearer.write_bytes(PASSWORD.encode() + b"\xff")
    url = f"http://user:{PASSWORD}@127.0.0.1:7420"
    config.write_text(f'server = "{url}"\n')
    for given in (
        {"server": url},
        {"guard": url},
        {"config": str(config)},
        {"environment": {"FENCE_SERVER": url, "OTHER": PASSWORD}},
        {"environment": {"OTHER": PASSWORD, "FENCE_AUTH_FILE": str(bearer)}},
        {"token": f"{PASSWORD} and more"},
        {"auth_file": str(bearer)},
    ):
        with pytest.raises(fencepost.Invalid) as refused:
            Client(**{"environment": {}, **given})
        check_hidden(refused.value, PASSWORD)


def test_no_frame_shows_a_token_that_is_refused(direct: Client, name: str) -> None:
    with direct.lock(name) as lease:
        header, (*_, signature, bearer) = lease.fencing_token, secrets_of(lease)
    for wrong in (
        f"{header};x",
        header * 10,
        header[:-4] + ":",
        header.replace("sig=:", 'sig="')[:-1] + '"',
    ):
        with pytest.raises(fencepost.Invalid) as refused:
            token.parse(wrong)
        check_hidden(refused.value, signature)
    for headers in ([header, header], [header] * 17):
        with pytest.raises(fencepost.Invalid) as refused:
            token.join(headers)
        texts = [text for text in shown(refused.value) if " headers=" not in text]
        assert not [text for text in texts if signature in text] and bearer


def test_a_secret_is_a_text_but_for_its_representation() -> None:
    secret = Secret("word")
    assert repr([secret]) == "[<hidden>]" and f"{secret}" == str(secret) == "word" == secret
    assert type(str(secret)) is str and json.dumps([secret]) == '["word"]'
    assert pickle.loads(pickle.dumps(secret)) == "word"
    assert settings.bearer(secret) is secret
