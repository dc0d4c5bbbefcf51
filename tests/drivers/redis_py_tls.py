"""redis-py over TLS: redis_py_tls.py URL NEXT_URL CA, with a token and a higher one in the URLs."""

import sys

import redis

url, next_url, ca = sys.argv[1:]
client = redis.Redis.from_url(url, ssl_ca_certs=ca)
assert client.set("orders:42:total", 100)

large = bytes(range(256)) * (8 << 12)
assert client.set("large", large) and client.get("large") == large

with client.pipeline(transaction=False) as pipeline:
    for _ in range(10_000):
        pipeline.incr("n")
    assert pipeline.execute() == list(range(1, 10_001))

with client.pipeline() as transaction:
    transaction.incr("n").incr("n")
    assert transaction.execute() == [10_001, 10_002]

subscriber = client.pubsub(ignore_subscribe_messages=True)
subscriber.subscribe("news")
subscriber.get_message(timeout=10)
assert client.publish("news", b"x") == 1
assert subscriber.get_message(timeout=10)["data"] == b"x"

# The default is what the system trusts.
try:
    redis.Redis.from_url(url).ping()
    sys.exit("a CA that is not named was trusted")
except redis.ConnectionError as error:
    assert "CERTIFICATE_VERIFY_FAILED" in str(error), error

assert redis.Redis.from_url(next_url, ssl_ca_certs=ca).set("orders:42:total", 150)
try:
    client.set("orders:42:total", 130)
    sys.exit("a stale token was accepted")
except redis.ResponseError as error:
    assert str(error).startswith(("FENCED", "UNKNOWN")), error
print("redis-py over TLS: ok")
