"""A cron job that runs on one of many machines at a time: ``python cron_job.py``.

Exit codes as those of ``fence run``: 75 if another machine runs it, 76 if the lock was lost.
"""

from __future__ import annotations

import os
import sys
import time

from fencepost import Client, Contended, Lease, LeaseLost
from fencepost.interrupting import interrupting

#: Time to live of the lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


def job(lease: Lease) -> None:
    """The work; replace it."""
    for part in range(3):
        lease.put("cron/nightly", f"part {part}")
        print(f"part {part}", flush=True)
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)


def main() -> int:
    with Client() as client:
        try:
            with interrupting(client.lock("cron/nightly", ttl=TTL_S)) as lease:
                job(lease)
        except Contended as error:
            print(f"runs elsewhere: {error}", file=sys.stderr)
            return 75
        except LeaseLost as error:
            print(error, file=sys.stderr)
            return 76
    return 0


if __name__ == "__main__":
    sys.exit(main())
