"""Long pipelines of redis-py, which sends all of a pipeline before it reads a reply.

    redis_py_pipeline.py URL GUARD_PID
"""

import sys

import redis

COMMANDS = 500_000
# What one buffer may hold by default, a quarter of --max-redis-buffer-bytes.
GROWTH_KB_MAX = 128 * 1024


def peak_kb(pid):
    """The most memory that the process has had."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def main(url, pid):
    before = peak_kb(pid)
    client = redis.from_url(url)
    for transaction in (False, True):
        pipeline = client.pipeline(transaction=transaction)
        for number in range(COMMANDS // 2):
            pipeline.set("key", f"value {number:06}")
            pipeline.get("key")
        replies = pipeline.execute()
        expected = []
        for number in range(COMMANDS // 2):
            expected += [True, b"value %06d" % number]
        assert replies == expected, "other replies"
    grown = peak_kb(pid) - before
    assert grown < GROWTH_KB_MAX, f"{grown} KiB more"
    print(f"redis-py {redis.__version__}: {COMMANDS} commands in one pipeline, {grown} KiB more")


main(*sys.argv[1:])
