// node-redis through the guard, as an application would use it: the token is the URL's password.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { RESP_TYPES, createClient, defineScript } from "redis";

const open = [];
let redis;

async function connect(options = {}) {
  const client = createClient({ url: process.env.FENCE_URL, ...options });
  client.on("error", () => {});
  await client.connect();
  open.push(client);
  return client;
}

before(async () => {
  redis = await connect();
});

after(() => {
  for (const client of open) if (client.isOpen) client.destroy();
});

for (const RESP of [2, 3]) {
  test(`values over RESP${RESP}`, async () => {
    const client = await connect({ RESP });
    const key = (name) => `${RESP}:${name}`;
    assert.equal(await client.set(key("s"), "grün"), "OK");
    assert.equal(await client.get(key("s")), "grün");
    assert.equal(await client.get("missing"), null);
    await client.hSet(key("h"), { a: "1", b: "2" });
    assert.deepEqual({ ...(await client.hGetAll(key("h"))) }, { a: "1", b: "2" });
    await client.zAdd(key("z"), [{ score: 1.5, value: "one" }, { score: 2, value: "two" }]);
    assert.deepEqual(
      (await client.zRangeWithScores(key("z"), 0, -1)).map(({ score, value }) => [score, value]),
      [[1.5, "one"], [2, "two"]],
    );
    await client.sAdd(key("set"), ["x", "y"]);
    assert.equal([...(await client.sMembers(key("set")))].length, 2);
    assert.equal(await client.sIsMember(key("set"), "x"), 1);
  });
}

test("binary and large values", async () => {
  const buffers = redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  const binary = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  await redis.set("binary", binary);
  assert.deepEqual(await buffers.get("binary"), binary);
  const large = "x".repeat(5 << 20);
  await redis.set("large", large);
  assert.equal((await redis.get("large")).length, large.length);
});

test("commands of one tick travel together and keep their order", async () => {
  const replies = await Promise.all(Array.from({ length: 2000 }, () => redis.incr("node-redis:count")));
  assert.deepEqual(replies, Array.from({ length: 2000 }, (_, i) => i + 1));
});

test("transactions", async () => {
  assert.deepEqual(await redis.multi().set("t", "1").incr("t").get("t").exec(), ["OK", 2, "2"]);
  const watcher = await connect();
  await watcher.watch("t");
  await redis.set("t", "changed");
  await assert.rejects(watcher.multi().set("t", "lost").exec(), /watch/i);
  assert.equal(await redis.get("t"), "changed");
});

test("scripts", async () => {
  const addTo = defineScript({
    SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
    NUMBER_OF_KEYS: 1,
    parseCommand(parser, key, by) {
      parser.pushKey(key);
      parser.push(String(by));
    },
    transformReply: undefined,
  });
  const client = await connect({ scripts: { addTo } });
  assert.equal(await client.addTo("node-redis:lua", 5), 5);
  assert.equal(await client.addTo("node-redis:lua", 6), 11);
});

test("publish and subscribe", async () => {
  const subscriber = await connect();
  const received = new Promise((resolve) => subscriber.subscribe("news", (text) => resolve(text)));
  const pattern = new Promise((resolve) => subscriber.pSubscribe("ne?", (text) => resolve(text)));
  await subscriber.ping();
  await redis.publish("news", "hello");
  await redis.publish("nex", "again");
  assert.equal(await received, "hello");
  assert.equal(await pattern, "again");
  await subscriber.unsubscribe();
  await subscriber.pUnsubscribe();
});

test("blocking", async () => {
  const blocked = await connect();
  const popped = blocked.blPop("queue", 10);
  await redis.rPush("queue", "item");
  assert.equal((await popped).element, "item");
  assert.equal(await blocked.blPop("queue", 0.05), null);
});

test("scanning", async () => {
  await redis.sAdd("many", Array.from({ length: 50 }, (_, i) => String(i)));
  const found = new Set();
  for await (const part of redis.sScanIterator("many")) [part].flat().forEach((one) => found.add(one));
  assert.equal(found.size, 50);
});

test("an error is an error and the connection stays open", async () => {
  await redis.set("text", "abc");
  await assert.rejects(redis.incr("text"), /not an integer/);
  assert.equal(await redis.get("text"), "abc");
});

test("client-side name and identity", async () => {
  const client = await connect({ name: "judge" });
  assert.equal(await client.clientGetName(), "judge");
});

// The last one: this token ends here.
test("after the hand-over every write is refused", async () => {
  const next = createClient({ url: process.env.FENCE_NEXT_URL });
  await next.connect();
  open.push(next);
  assert.equal(await next.set("owner", "next"), "OK");
  const late = createClient({ url: process.env.FENCE_URL, socket: { reconnectStrategy: false } });
  late.on("error", () => {});
  await assert.rejects(
    (async () => {
      await late.connect();
      await late.set("owner", "late");
    })(),
    /FENCED|NOTOKEN|closed/i,
  );
  if (late.isOpen) late.destroy();
  assert.equal(await next.get("owner"), "next");
});
