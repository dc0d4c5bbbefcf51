// The Node examples of docs/guides/redis-pools.md over a hand-over: nothing late is written, and the
// next lease is presented without a new pool. It lies beside the files that extract.py writes.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { createClient } from "redis";
import * as ioredis from "./ioredis.mjs";
import * as job from "./job.mjs";
import { call } from "./lease.mjs";
import * as nodeRedis from "./node-redis.mjs";

const { LOCKS_URL, GUARD_PORT } = process.env;
const SIZE = 16;
const closing = [];
after(() => {
  for (const close of closing.reverse()) close();
});

/** The next holder of a lock, which ends the lease of the present one. */
async function otherHolder(lock) {
  const { holder } = await (await fetch(`${LOCKS_URL}/v1/locks/${lock}`)).json();
  await call(lock, "release", { lease_id: holder.lease_id });
  const grant = await call(lock, "acquire", { owner: "other", ttl_ms: 60_000 });
  const url = `redis://fence:${grant.fencing_credential}@127.0.0.1:${GUARD_PORT}`;
  const client = createClient({ url, socket: { reconnectStrategy: false } });
  client.on("error", () => {});
  await client.connect();
  closing.push(() => client.isOpen && client.destroy());
  return { client, release: () => call(lock, "release", { lease_id: grant.lease_id }) };
}

/** How many of SIZE writes at the same time succeeded. */
async function atOnce(write) {
  const outcomes = await Promise.allSettled(Array.from({ length: SIZE }, write));
  return outcomes.filter(({ status }) => status === "fulfilled").length;
}

/** Repeats a command until the driver has connected again. */
async function onceConnected(write) {
  const end = Date.now() + 20_000;
  for (;;) {
    try {
      return await write();
    } catch (error) {
      if (Date.now() > end) throw error;
      await setTimeout(20);
    }
  }
}

/** One lease a process: `push` writes to the journal of orders/42 with the example's connections. */
async function overAHandOver(push, range, begin, clear) {
  await begin();
  await clear();
  assert.equal(await atOnce(() => push("first")), SIZE);
  const other = await otherHolder("orders/42");
  await other.client.rPush("orders:42:journal", "other");
  await assert.rejects(push("late"), /FENCED/);
  assert.equal(await atOnce(() => push("late")), 0);
  await other.release();
  await begin();
  await onceConnected(async () => assert.equal(await atOnce(() => push("next")), SIZE));
  await assert.rejects(other.client.rPush("orders:42:journal", "late"), /FENCED/);
  const written = await range();
  assert.deepEqual(written.slice(0, SIZE + 1), [...Array(SIZE).fill("first"), "other"]);
  assert.ok(written.slice(SIZE + 1).every((value) => value === "next"), String(written));
  const { holder } = await (await fetch(`${LOCKS_URL}/v1/locks/orders/42`)).json();
  await call("orders/42", "release", { lease_id: holder.lease_id });
}

const journal = "orders:42:journal";

test("node-redis: one lease a process", async () => {
  const { pool, begin } = nodeRedis;
  pool.on("error", () => {});
  closing.push(() => pool.destroy());
  const push = (value) => pool.rPush(journal, value);
  await overAHandOver(push, () => pool.lRange(journal, 0, -1), begin, () => pool.del(journal));
});

test("ioredis: one lease a process", async () => {
  const { redis, begin } = ioredis;
  redis.on("error", () => {});
  closing.push(() => redis.disconnect());
  const push = (value) => redis.rpush(journal, value);
  await overAHandOver(push, () => redis.lrange(journal, 0, -1), begin, () => redis.del(journal));
  // AUTH again on a live connection.
  const id = await redis.client("ID");
  await begin();
  assert.equal(await redis.set("orders:42:again", "1"), "OK");
  assert.equal(await redis.client("ID"), id);
});

test("node-redis: one lease a job", async () => {
  const { pool, run } = job;
  pool.on("error", () => {});
  closing.push(() => pool.destroy());
  const work = async (connection) => {
    await connection.rPush("orders:77:journal", "first");
    return connection.clientId();
  };
  assert.equal(await run(77, work), await run(77, work));
  await assert.rejects(pool.rPush("orders:77:journal", "late"), /NOTOKEN/);
  await assert.rejects(run(78, work), /NOTOKEN/);
  const stalls = async (connection) => {
    const other = await otherHolder("orders/77");
    await other.client.rPush("orders:77:journal", "other");
    await assert.rejects(connection.rPush("orders:77:journal", "late"), /FENCED/);
    // The driver connects again, without a token.
    await onceConnected(() => connection.ping());
    await assert.rejects(connection.rPush("orders:77:journal", "late"), /NOTOKEN/);
    await other.release();
  };
  await assert.rejects(run(77, stalls), /lease-lost/);
  await onceConnected(() => run(77, work));
  assert.deepEqual(await pool.lRange("orders:77:journal", 0, -1), ["first", "first", "other", "first"]);
});

test("one lease a request", async () => {
  const { pool } = job;
  const { redis } = ioredis;
  const grant = await call("orders/79", "acquire", { owner: "web", ttl_ms: 60_000 });
  const command = ["FENCE", grant.fencing_credential, "INCRBY", "orders:79:total", "5"];
  assert.equal(await pool.sendCommand(command), 5);
  assert.equal(await redis.call(...command), 10);
  await assert.rejects(pool.sendCommand(command.slice(2)), /NOTOKEN/);
});
