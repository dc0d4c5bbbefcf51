// A pool of node-redis over a hand-over: its credentials provider presents the newest lease.
//
// FENCE_URL, FENCE_OTHER_URL and FENCE_NEXT_URL have credentials of one lock, each with a higher token.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { createClient, createClientPool } from "redis";

const SIZE = 16;
const opened = [];
after(() => {
  for (const made of opened) made.destroy();
});

test(`a pool of ${SIZE} presents the newest lease by itself`, async () => {
  let lease = new URL(process.env.FENCE_URL);
  const credentials = async () => ({ username: lease.username, password: lease.password });
  const options = {
    socket: { host: lease.hostname, port: Number(lease.port) },
    credentialsProvider: { type: "async-credentials-provider", credentials },
    // What was sent when a connection broke is not sent again.
    commandsQueueMaxLength: 100,
    disableOfflineQueue: true,
  };
  const pool = createClientPool(options, { minimum: SIZE, maximum: SIZE });
  pool.on("error", () => {});
  await pool.connect();
  opened.push(pool);
  const holder = createClient({ url: process.env.FENCE_OTHER_URL });
  holder.on("error", () => {});

  await pool.del("journal");
  const onEach = (value) => Promise.allSettled(Array.from({ length: SIZE }, () => pool.rPush("journal", value)));
  const first = await onEach("first");
  assert.ok(first.every(({ status }) => status === "fulfilled"), JSON.stringify(first));

  await holder.connect();
  opened.push(holder);
  await holder.rPush("journal", "other");
  const late = await onEach("late");
  assert.ok(late.every(({ status }) => status === "rejected"), JSON.stringify(late));
  assert.ok(late.some(({ reason }) => String(reason).includes("FENCED")), String(late[0].reason));
  assert.deepEqual(await holder.lRange("journal", 0, -1), [...Array(SIZE).fill("first"), "other"]);

  lease = new URL(process.env.FENCE_NEXT_URL);
  // The pool connects again by itself, without a word from here.
  const end = Date.now() + 20_000;
  let written = 0;
  for (let all = false; !all; ) {
    assert.ok(Date.now() < end, "the pool did not present the next lease");
    await setTimeout(20);
    const outcomes = await onEach("next");
    const count = outcomes.filter(({ status }) => status === "fulfilled").length;
    written += count;
    all = count === SIZE;
  }
  await assert.rejects(holder.rPush("journal", "late"), /FENCED/);
  const journal = await pool.lRange("journal", 0, -1);
  assert.ok(!journal.includes("late"), JSON.stringify(journal));
  assert.equal(journal.filter((value) => value === "next").length, written);
});
