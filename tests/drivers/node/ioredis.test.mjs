// ioredis through the guard, as an application would use it: the token is the URL's password.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Redis from "ioredis";

const url = process.env.FENCE_URL;
let redis;
const open = [];

function connect(options = {}) {
  const client = new Redis(url, { maxRetriesPerRequest: 3, ...options });
  client.on("error", () => {});
  open.push(client);
  return client;
}

before(() => {
  redis = connect();
});

after(() => {
  for (const client of open) client.disconnect();
});

test("strings, numbers and expiry", async () => {
  assert.equal(await redis.set("s", "grün"), "OK");
  assert.equal(await redis.get("s"), "grün");
  assert.equal(await redis.incrby("n", 41), 41);
  assert.equal(await redis.incr("n"), 42);
  assert.equal(await redis.get("missing"), null);
  assert.equal(await redis.set("x", "1", "PX", 60000, "NX"), "OK");
  assert.equal(await redis.set("x", "2", "NX"), null);
  assert.ok((await redis.pttl("x")) > 0);
});

test("hashes, lists, sets, sorted sets, streams", async () => {
  await redis.hset("h", { a: "1", b: "2" });
  assert.deepEqual(await redis.hgetall("h"), { a: "1", b: "2" });
  await redis.rpush("l", "1", "2", "3");
  assert.deepEqual(await redis.lrange("l", 0, -1), ["1", "2", "3"]);
  await redis.sadd("set", "x", "y");
  assert.deepEqual((await redis.smembers("set")).sort(), ["x", "y"]);
  await redis.zadd("z", 1, "one", 2, "two");
  assert.deepEqual(await redis.zrange("z", 0, -1, "WITHSCORES"), ["one", "1", "two", "2"]);
  const id = await redis.xadd("stream", "*", "field", "value");
  assert.deepEqual(await redis.xrange("stream", "-", "+"), [[id, ["field", "value"]]]);
});

test("binary and large values", async () => {
  const binary = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  await redis.set("binary", binary);
  assert.deepEqual(await redis.getBuffer("binary"), binary);
  const large = Buffer.alloc(5 << 20, "x");
  await redis.set("large", large);
  assert.equal((await redis.getBuffer("large")).compare(large), 0);
});

test("pipelines keep their order", async () => {
  const pipeline = redis.pipeline();
  for (let i = 0; i < 2000; i++) pipeline.incr("count");
  const replies = await pipeline.exec();
  assert.deepEqual(replies.map(([error, value]) => error ?? value), Array.from({ length: 2000 }, (_, i) => i + 1));
  const many = await Promise.all(Array.from({ length: 500 }, (_, i) => redis.echo(String(i))));
  assert.deepEqual(many, Array.from({ length: 500 }, (_, i) => String(i)));
});

test("transactions", async () => {
  const replies = await redis.multi().set("t", "1").incr("t").get("t").exec();
  assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, "2"]]);
  await redis.watch("t");
  const other = connect();
  await other.set("t", "changed");
  assert.equal(await redis.multi().set("t", "lost").exec(), null);
  assert.equal(await redis.get("t"), "changed");
});

test("scripts", async () => {
  const client = connect();
  client.defineCommand("addTo", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
  assert.equal(await client.addTo("lua", 5), 5);
  assert.equal(await client.addTo("lua", 6), 11);
  assert.deepEqual(await client.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v"), ["k", "v"]);
});

test("publish and subscribe", async () => {
  const subscriber = connect();
  const received = new Promise((resolve) => subscriber.on("message", (channel, text) => resolve([channel, text])));
  await subscriber.subscribe("news");
  await redis.publish("news", "hello");
  assert.deepEqual(await received, ["news", "hello"]);
  const pattern = new Promise((resolve) => subscriber.on("pmessage", (...words) => resolve(words)));
  await subscriber.psubscribe("ne*");
  await redis.publish("new", "again");
  assert.deepEqual(await pattern, ["ne*", "new", "again"]);
  await subscriber.unsubscribe("news");
  await subscriber.punsubscribe("ne*");
  assert.equal(await subscriber.get("missing"), null);
});

test("blocking", async () => {
  const blocked = connect();
  const popped = blocked.blpop("queue", 10);
  await redis.rpush("queue", "item");
  assert.deepEqual(await popped, ["queue", "item"]);
  assert.equal(await blocked.brpop("queue", 0.05), null);
});

test("scanning", async () => {
  for (let i = 0; i < 50; i++) await redis.sadd("many", String(i));
  const found = new Set();
  for await (const part of redis.sscanStream("many")) part.forEach((one) => found.add(one));
  assert.equal(found.size, 50);
});

test("an error is an error and the connection stays open", async () => {
  await redis.set("text", "abc");
  await assert.rejects(redis.incr("text"), /not an integer/);
  assert.equal(await redis.get("text"), "abc");
});

test("a connection that breaks comes back with its token", async () => {
  const client = connect();
  await client.set("r", "1");
  client.stream.destroy();
  assert.equal(await client.incr("r"), 2);
});

test("another database and client name", async () => {
  const client = connect({ connectionName: "judge" });
  assert.equal(await client.client("GETNAME"), "judge");
});

// The last one: this token ends here.
test("after the hand-over every write is refused", async () => {
  const next = new Redis(process.env.FENCE_NEXT_URL);
  open.push(next);
  assert.equal(await next.set("owner", "next"), "OK");
  const late = new Redis(url, { maxRetriesPerRequest: 0, retryStrategy: null });
  open.push(late);
  const errors = [];
  late.on("error", (error) => errors.push(error.message));
  await assert.rejects(late.set("owner", "late"), (error) => {
    errors.push(error.message);
    return true;
  });
  assert.ok(errors.some((text) => /FENCED|NOTOKEN|closed/.test(text)), errors.join("\n"));
  assert.equal(await next.get("owner"), "next");
});
