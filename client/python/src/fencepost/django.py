"""A middleware of Django that holds locks; from ``pip install fencepost[django]``.

::

    MIDDLEWARE = [..., "fencepost.django.LockMiddleware"]
    FENCEPOST_LOCKS = [(r"/orders/(?P<order>\\w+)", "orders/{order}")]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from .client import Client
from .errors import FencepostError, Invalid
from .frameworks import SAFE_METHODS, LockOf, name_of, refusal_of


class LockMiddleware:
    """Holds a lock for each request that changes a path of ``FENCEPOST_LOCKS``.

    The first pattern that matches the beginning of the path decides, without the prefix that the
    site is mounted under; its groups fill the name, and a path that makes none is replied 404.
    Views use ``request.lease``, whose writes fail once the lock is lost. A request whose lock is
    held for longer than ``FENCEPOST_WAIT`` (5 s), or lost, is replied 503, also if only its end
    shows the loss: its unfenced effects may overlap with another holder's. Further settings:
    ``FENCEPOST_TTL`` (15 s), and ``FENCEPOST_CLIENT`` in place of a client of the environment.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        rules: Iterable[tuple[str, LockOf]] = settings.FENCEPOST_LOCKS
        self._rules = [(re.compile(pattern), lock) for pattern, lock in rules]
        self._ttl = getattr(settings, "FENCEPOST_TTL", 15)
        self._wait = getattr(settings, "FENCEPOST_WAIT", 5)
        # Shared by the threads of a process, and safe over the fork of a server such as gunicorn.
        self._client: Client = getattr(settings, "FENCEPOST_CLIENT", None) or Client()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            name = None if request.method in SAFE_METHODS else self._name_of(request.path_info)
        except Invalid as error:
            return JsonResponse({"detail": str(error)}, status=404)
        if name is None:
            return self._get_response(request)
        try:
            with self._client.lock(name, ttl=self._ttl, wait=self._wait) as lease:
                request.lease = lease
                return self._get_response(request)
        except FencepostError as error:
            return _refused(error)

    def _name_of(self, path: str) -> str | None:
        for pattern, lock in self._rules:
            match = pattern.match(path)
            if match is not None:
                named = match.groupdict()
                return name_of(lock, **named) if named else name_of(lock, *match.groups())
        return None

    def process_exception(self, _: HttpRequest, error: Exception) -> Any:
        """Django turns a view's error into a reply before the middleware sees it."""
        return _refused(error) if isinstance(error, FencepostError) else None


def _refused(error: FencepostError) -> HttpResponse:
    body, headers = refusal_of(error)
    return JsonResponse(body, status=503, headers=headers)
