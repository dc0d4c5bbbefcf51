"""A Django middleware: changes of an order hold its lock. ``MIDDLEWARE = ["…LockMiddleware"]``."""

from __future__ import annotations

import math
import os
import re
from typing import Any, Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from fencepost import Client, FencepostError

# Shared by the threads of a process, and safe over the fork of a server such as gunicorn.
client = Client()
#: Time to live of a lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


class LockMiddleware:
    """Holds ``orders/ID`` for each request that changes ``/orders/ID``; views use
    ``request.lease``, whose writes fail once the lock is lost.

    Such a request is replied 503, also if only its end shows that the lock was lost: its unfenced
    effects may overlap with another holder's.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        order = re.match(r"/orders/([A-Za-z0-9]+)", request.path)
        if request.method in ("GET", "HEAD", "OPTIONS") or order is None:
            return self.get_response(request)
        try:
            with client.lock(f"orders/{order.group(1)}", ttl=TTL_S, wait=5) as lease:
                request.lease = lease
                return self.get_response(request)
        except FencepostError as error:
            return refused(error)

    def process_exception(self, _: HttpRequest, error: Exception) -> Any:
        """Django turns a view's error into a reply before the middleware sees it."""
        return refused(error) if isinstance(error, FencepostError) else None


def refused(error: FencepostError) -> HttpResponse:
    body = {"detail": str(error), "code": error.code}
    after = str(math.ceil(error.retry_after or 1))
    return JsonResponse(body, status=503, headers={"retry-after": after})
