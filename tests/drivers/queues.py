"""Job queues, a cache and a lock library through the guard, unmodified.

usage: queues.py URL [NAME…]      names as in the functions below; all where none is given
"""
import asyncio
import os
import sys
import threading
import time
import traceback
from urllib.parse import urlsplit

URL = sys.argv[1]
PARTS = urlsplit(URL)
JOBS = {"count": 0}


def until(what, done):
    """Waits for a condition, at most 20 s."""
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, f"waited for: {what}"
        time.sleep(0.02)


def add(one, other):
    JOBS["count"] += 1
    return one + other


def fails_once():
    JOBS["count"] += 1
    if JOBS["count"] == 1:
        raise ValueError("not yet")
    return "done"


def rq():
    import redis
    from rq import Queue, Retry, SimpleWorker

    connection = redis.Redis.from_url(URL)
    queue = Queue("rq-work", connection=connection)
    sum_job = queue.enqueue(add, 2, 3)
    retried = queue.enqueue(fails_once, retry=Retry(max=2))
    JOBS["count"] = 0
    worker = SimpleWorker([queue], connection=connection)
    worker.work(burst=True, logging_level="ERROR")
    assert sum_job.return_value() == 5
    worker.work(burst=True, logging_level="ERROR")
    assert retried.get_status(refresh=True) in ("finished", "scheduled", "queued"), retried.get_status()
    later = queue.enqueue(add, 1, 1)
    later.cancel()
    assert later.get_status(refresh=True) == "canceled"
    queue.empty()
    assert queue.count == 0


def dramatiq():
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker = RedisBroker(url=URL)
    broker.add_middleware(Results(backend=RedisBackend(url=URL)))
    library.set_broker(broker)
    attempts = []

    @library.actor(store_results=True, queue_name="dramatiq-work")
    def double(value):
        return value * 2

    @library.actor(max_retries=3, min_backoff=10, queue_name="dramatiq-work")
    def flaky():
        attempts.append(1)
        if len(attempts) < 2:
            raise ValueError("not yet")

    worker = library.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        assert double.send(21).get_result(block=True, timeout=20_000) == 42
        assert double.send_with_options(args=(4,), delay=100).get_result(block=True, timeout=20_000) == 8
        flaky.send()
        until("the second attempt", lambda: len(attempts) >= 2)
    finally:
        worker.stop()
        broker.close()


def celery():
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    app = Celery("judge", broker=URL, backend=URL)
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
    # Without a prefix some names begin with the name of the machine, and no rule can match them.
    app.conf.broker_transport_options = {"global_keyprefix": "celery:"}
    app.conf.result_backend_transport_options = {"global_keyprefix": "celery:"}
    attempts = []

    @app.task(name="judge.multiply")
    def multiply(one, other):
        return one * other

    @app.task(name="judge.flaky", bind=True, max_retries=3, default_retry_delay=0)
    def flaky(self):
        attempts.append(1)
        if len(attempts) < 2:
            raise self.retry(countdown=0)
        return "done"

    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR"):
        assert multiply.delay(6, 7).get(timeout=20) == 42
        assert flaky.delay().get(timeout=20) == "done"
        assert multiply.apply_async((2, 2), countdown=0.2).get(timeout=20) == 4


def arq():
    from arq import Worker, create_pool, func
    from arq.connections import RedisSettings

    settings = RedisSettings(
        host=PARTS.hostname, port=PARTS.port, username=PARTS.username, password=PARTS.password
    )
    tries = []

    async def triple(ctx, value):
        return value * 3

    async def flaky(ctx):
        from arq import Retry

        tries.append(1)
        if len(tries) < 2:
            raise Retry()
        return "done"

    async def run():
        pool = await create_pool(settings)
        jobs = [await pool.enqueue_job("triple", 14), await pool.enqueue_job("flaky")]
        functions = [func(triple, name="triple"), func(flaky, name="flaky")]
        worker = Worker(functions, redis_settings=settings, burst=True, poll_delay=0.05, handle_signals=False)
        await worker.main()
        results = [await job.result(timeout=20, poll_delay=0.05) for job in jobs]
        assert results == [42, "done"], results
        await worker.close()
        await pool.aclose()

    asyncio.run(run())


def huey():
    from huey import RedisHuey

    queue = RedisHuey("huey-work", url=URL)

    @queue.task()
    def square(value):
        return value * value

    @queue.task(retries=2)
    def flaky():
        JOBS["count"] += 1
        if JOBS["count"] < 2:
            raise ValueError("not yet")
        return "done"

    JOBS["count"] = 0
    results = [square(7), flaky(), square.schedule(args=(3,), delay=0.1)]
    consumer = queue.create_consumer(workers=1, periodic=False, initial_delay=0.02, max_delay=0.1, scheduler_interval=1)
    consumer.start()
    try:
        values = [result.get(blocking=True, timeout=20) for result in results]
        assert values == [49, "done", 9], values
    finally:
        consumer.stop(graceful=True)


def django_redis():
    from django.conf import settings

    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL, "KEY_PREFIX": "cache"}
    settings.configure(CACHES={"default": cache})
    from django.core.cache import cache

    cache.set("a", {"n": 1}, timeout=60)
    assert cache.get("a") == {"n": 1}
    assert cache.add("a", 2) is False
    cache.set_many({"b": 1, "c": 2})
    assert cache.get_many(["b", "c"]) == {"b": 1, "c": 2}
    assert cache.incr("b") == 2
    assert cache.touch("b", 30)
    with cache.lock("locked", timeout=60):
        assert cache.ttl("a") > 0
    assert sorted(cache.keys("*"))[:3] == ["a", "b", "c"]
    assert cache.delete_pattern("*") >= 3
    assert cache.get("a") is None


def redis_lock():
    import redis
    import redis_lock as library

    connection = redis.Redis.from_url(URL)
    lock = library.Lock(connection, "python-redis-lock", expire=60, auto_renewal=True)
    assert lock.acquire(blocking=False)
    other = library.Lock(connection, "python-redis-lock", expire=60)
    assert not other.acquire(blocking=False)
    waits = threading.Thread(target=lambda: other.acquire(blocking=True, timeout=20))
    waits.start()
    lock.release()
    waits.join()
    other.release()


ALL = [rq, dramatiq, celery, arq, huey, django_redis, redis_lock]


def main():
    wanted = sys.argv[2:] or [function.__name__ for function in ALL]
    failed = 0
    for function in ALL:
        if function.__name__ not in wanted:
            continue
        JOBS["count"] = 0
        try:
            function()
            print(f"{function.__name__}: ok", flush=True)
        except BaseException:
            failed += 1
            traceback.print_exc()
            print(f"{function.__name__}: FAILED", flush=True)
    # Some of the libraries leave threads behind.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    # Workers import the functions of jobs by the name of their module.
    import queues

    queues.main()
