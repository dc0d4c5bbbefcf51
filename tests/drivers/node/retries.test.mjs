// What ioredis and node-redis send again when their connection breaks at a hand-over.
//
// GUARD_PORT is the port, TOKENS are credentials of one lock with rising tokens. Each client has the
// first of its three, and writes "first". As it writes "lost", another client presents the second
// and writes "other", this process gets the third, and the connection breaks. The client writes
// "queued" before it has connected again. What follows "other" was written under the third.
import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import Redis from "ioredis";
import { createClient, createClientPool } from "redis";

const port = Number(process.env.GUARD_PORT);
const tokens = process.env.TOKENS.split(" ");
const closing = [];
after(() => {
  for (const close of closing.reverse()) close();
});

/** A port that passes bytes on to the guard. The first `lost` waits for `handOver`, and is dropped. */
async function relay(handOver) {
  let isLost = false;
  const sockets = new Set();
  const server = net.createServer((client) => {
    const guard = net.connect(port, "127.0.0.1");
    for (const [from, to] of [[client, guard], [guard, client]]) {
      sockets.add(from);
      from.on("error", () => {});
      from.on("close", () => to.destroy());
      from.on("data", async (data) => {
        if (isLost || from === guard || !data.includes("lost")) return to.write(data);
        isLost = true;
        await handOver();
        client.destroy();
      });
    }
  });
  closing.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return server.address().port;
}

/** A client of the guard itself, which connects when it is used. */
function direct(password) {
  const client = new Redis({ port, username: "fence", password, lazyConnect: true });
  client.on("error", () => {});
  closing.push(() => client.disconnect());
  return client;
}

/** How both late writes ended, and the journal. */
async function handOver(open) {
  const [first, second, third] = tokens.splice(0, 3);
  const lease = { username: "fence", password: first };
  const relayed = await relay(async () => {
    await direct(second).rpush("journal", "other");
    lease.password = third;
  });
  const { push, range, del, breaks } = await open(relayed, lease);
  await del();
  await push("first");
  const broken = breaks();
  const late = [push("lost")];
  // Its rejection may come before it is awaited.
  late[0].catch(() => {});
  await broken;
  late.push(push("queued"));
  const ends = await Promise.allSettled(late);
  for (;;) {
    const journal = await range().catch(() => null);
    if (journal !== null) return { ends: ends.map(({ status }) => status), journal: journal.join(" ") };
    await setTimeout(20);
  }
}

const withIoredis = (options) => async (relayed, lease) => {
  const redis = new Redis({ port: relayed, ...lease, ...options });
  redis.on("error", () => {});
  redis.on("close", () => Object.assign(redis.options, lease));
  closing.push(() => redis.disconnect());
  await once(redis, "ready");
  return {
    push: (value) => redis.rpush("journal", value),
    range: () => redis.lrange("journal", 0, -1),
    del: () => redis.del("journal"),
    breaks: () => once(redis, "reconnecting"),
  };
};

const withNodeRedis = (create, options) => async (relayed, lease) => {
  const credentials = async () => ({ ...lease });
  const client = create({
    socket: { port: relayed },
    credentialsProvider: { type: "async-credentials-provider", credentials },
    ...options,
  });
  const breaks = () => new Promise((resolve) => client.once("error", resolve));
  client.on("error", () => {});
  closing.push(() => client.destroy());
  await client.connect();
  return {
    push: (value) => client.rPush("journal", value),
    range: () => client.lRange("journal", 0, -1),
    del: () => client.del("journal"),
    breaks,
  };
};

const pool = (options) => createClientPool(options, { minimum: 1, maximum: 1 });
const noRetries = { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 };
const offline = { disableOfflineQueue: true };
const [sent, not] = ["fulfilled", "rejected"];
for (const [name, open, ends, journal] of [
  ["ioredis by default: both are written under the next lease", withIoredis({}), [sent, sent], "lost queued"],
  ["ioredis without retries: what was queued is", withIoredis(noRetries), [not, sent], "queued"],
  ["ioredis as in the guide", withIoredis({ ...noRetries, enableOfflineQueue: false }), [not, not], ""],
  ["node-redis by default: what was queued is", withNodeRedis(createClient, {}), [not, sent], "queued"],
  ["a pool of node-redis by default: so too", withNodeRedis(pool, {}), [not, sent], "queued"],
  ["node-redis as in the guide", withNodeRedis(createClient, offline), [not, not], ""],
  ["a pool of node-redis as in the guide", withNodeRedis(pool, offline), [not, not], ""],
]) {
  test(name, async () => {
    assert.deepEqual(await handOver(open), { ends, journal: `first other ${journal}`.trim() });
  });
}

/** A write that waits for a connection of a pool, the logins of which wait for the next lease. */
async function waiting(sizes) {
  const [first, second, third] = tokens.splice(0, 3);
  let lease = first;
  let login = Promise.resolve();
  const credentials = async () => {
    await login;
    return { username: "fence", password: lease };
  };
  const credentialsProvider = { type: "async-credentials-provider", credentials };
  const made = createClientPool({ socket: { port }, credentialsProvider, disableOfflineQueue: true }, sizes);
  made.on("error", () => {});
  closing.push(() => made.destroy());
  await made.connect();
  await made.del("journal");
  let begin;
  login = new Promise((resolve) => (begin = resolve));
  let leave;
  made.execute(() => new Promise((resolve) => (leave = resolve)));
  const late = made.rPush("journal", "late");
  lease = third;
  begin();
  return { leave, late, other: direct(second) };
}

test("a pool of node-redis that grows sends under the next lease what waited", async () => {
  const { leave, late, other } = await waiting({ minimum: 1, maximum: 2, cleanupDelay: 100 });
  assert.equal(await late, 1);
  await assert.rejects(other.rpush("journal", "other"), /FENCED/);
  leave();
});

test("a pool of node-redis as in the guide, of one size, does not", async () => {
  const { leave, late, other } = await waiting({ minimum: 1, maximum: 1 });
  leave();
  assert.equal(await late, 1);
  assert.equal(await other.rpush("journal", "other"), 2);
});
