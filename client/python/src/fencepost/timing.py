"""Moments at which a lease is renewed and no longer trusted: pure rules in whole milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

TTL_MS_MAX = 86_400_000

_PAUSE_MS_MIN = 50
_PAUSE_MS_MAX = 1_000


@dataclass(frozen=True)
class Window:
    """Time that one reply of the lock server granted to a lease.

    It counts from before the request was sent. The server counts from when it handled the request,
    which is later, so the window ends before the server's lease does.
    """

    sent_at_ms: int
    ttl_ms: int

    @classmethod
    def of(cls, sent_at_ms: int, ttl_ms: int, requested_ms: int = TTL_MS_MAX) -> Window:
        """Window of a reply, which may not extend the requested time to live."""
        return cls(sent_at_ms, max(0, min(ttl_ms, requested_ms, TTL_MS_MAX)))

    @property
    def deadline_ms(self) -> int:
        """Moment until which the lease is trusted: 0.8 of its time to live.

        The rest allows for clocks that run at different rates.
        """
        return self.sent_at_ms + self.ttl_ms * 4 // 5

    @property
    def renew_at_ms(self) -> int:
        """Moment of the renewal: a third of the time to live, so that one may be lost."""
        return self.sent_at_ms + self.ttl_ms // 3

    @property
    def worn_at_ms(self) -> int:
        """Moment at which half of the trusted time has passed; a renewal succeeds before it."""
        return self.sent_at_ms + (self.deadline_ms - self.sent_at_ms) // 2

    @property
    def expires_at_ms(self) -> int:
        """Moment before which the server does not let the lease expire, if the clocks agree."""
        return self.sent_at_ms + self.ttl_ms

    @property
    def kill_by_ms(self) -> int:
        """Latest moment to kill work by force: 0.95 of the time to live."""
        return self.sent_at_ms + self.ttl_ms - (self.ttl_ms + 19) // 20

    def remaining_ms(self, now_ms: int) -> int:
        """Trusted time left; 0 once it has passed."""
        return max(0, self.deadline_ms - now_ms)

    def is_live(self, now_ms: int) -> bool:
        """``True`` if the lease is trusted at this moment."""
        return now_ms < self.deadline_ms

    def is_worn(self, now_ms: int) -> bool:
        """``True`` if more than half of the trusted time has passed: renew before use."""
        return self.remaining_ms(now_ms) * 2 < self.deadline_ms - self.sent_at_ms

    def renewal_patience_ms(self, now_ms: int) -> int:
        """Time after which a renewal without a reply is retried: half of what is left."""
        return max(50, self.remaining_ms(now_ms) // 2)

    def reply_timeout_ms(self, now_ms: int) -> int:
        """Time-out of a renewal: until the deadline, after which its reply is of no use."""
        return max(50, self.remaining_ms(now_ms))


def pause_ms(attempt: int, random: int) -> int:
    """Pause before retry ``attempt`` (1 is the first).

    Doubles from 50 ms to 1 s, of which ``random`` picks between a half and the whole, so that
    clients that failed together do not retry together.
    """
    whole = min(_PAUSE_MS_MIN << min(max(attempt - 1, 0), 10), _PAUSE_MS_MAX)
    half = whole // 2
    return half + random % (whole - half + 1)
