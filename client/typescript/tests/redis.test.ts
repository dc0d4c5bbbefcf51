/** Pools of both drivers on the guard's Redis port over a hand-over. */
import assert from "node:assert/strict";
import { before, test, type TestContext } from "node:test";
import { Redis } from "ioredis";
import { createClientPool } from "redis";
import { type Client, type Lease, LeaseLostError, StaleError } from "../src/index.js";
import { ioredis, type IoredisOptions, type LeaseConnections, nodeRedis } from "../src/redis.js";
import { aborted, client, lockServer, redisGuard, redisServer, renewSoon } from "./harness.js";

const SIZE = 16;

let direct: Client;
let port: number;

before(async () => {
  const store = await redisServer();
  const [server, redisPort] = await Promise.all([lockServer(), redisGuard(store)]);
  direct = client({ server });
  port = redisPort;
});

/** A list on the Redis port, by either driver. */
interface Journal<C> {
  open(): LeaseConnections<C>;
  append(client: C, value: string): Promise<unknown>;
  read(client: C): Promise<string[]>;
}

const ofNodeRedis = {
  open: () =>
    nodeRedis((options) =>
      createClientPool({ socket: { port }, ...options }, { minimum: SIZE, maximum: SIZE }),
    ),
  append: (pool, value) => pool.rPush("journal/node-redis", value),
  read: (pool) => pool.lRange("journal/node-redis", 0, -1),
} satisfies Journal<ReturnType<typeof createClientPool>>;

/** Several clients: ioredis has no pool. */
class Clients {
  readonly all: Redis[];
  #next = 0;

  constructor(options: IoredisOptions) {
    this.all = Array.from({ length: SIZE }, () => new Redis({ port, ...options }));
  }

  get next(): Redis {
    this.#next += 1;
    return this.all[this.#next % SIZE] as Redis;
  }

  on(event: "error", listener: (error: Error) => void): void {
    for (const one of this.all) one.on(event, listener);
  }

  disconnect(): void {
    for (const one of this.all) one.disconnect();
  }
}

const ofIoredis = {
  open: () => ioredis((options) => new Clients(options)),
  append: (clients, value) => clients.next.rpush("journal/ioredis", value),
  read: (clients) => clients.next.lrange("journal/ioredis", 0, -1),
} satisfies Journal<Clients>;

async function handOver<C>(t: TestContext, lock: string, journal: Journal<C>): Promise<void> {
  const [ours, others] = [journal.open(), journal.open()];
  const onEach = async (to: C, value: string) => {
    const all = Array.from({ length: SIZE }, () => journal.append(to, value));
    return (await Promise.allSettled(all)).map(({ status }) => status);
  };
  // Its next renewal, which would notice the loss, is minutes away.
  const first = await direct.lock(lock, { ttlMs: 600_000 });
  await ours.use(first);
  const old = await ours.run(first, async (opened) => opened);
  assert.deepEqual(await onEach(old, "first"), Array(SIZE).fill("fulfilled"));

  // Another process gets the lock; this one has not noticed.
  await direct.locks.revoke(lock, "by the test");
  const rival: Lease = await direct.lock(lock, { ttlMs: 60_000 });
  await others.use(rival);
  await others.run(rival, (to) => journal.append(to, "other"));
  const late = ours.run(first, (to) => journal.append(to, "late"));
  await assert.rejects(late, (error) => error instanceof StaleError && error.cause !== undefined);
  assert.deepEqual(await onEach(old, "late"), Array(SIZE).fill("rejected"));

  // The lock comes back: the first write succeeds, and late work of the old lease still fails.
  await rival.release();
  renewSoon(t);
  const next = await direct.lock(lock, { ttlMs: 60_000 });
  await ours.use(next);
  await ours.run(next, (to) => journal.append(to, "next"));
  assert.deepEqual(await onEach(old, "late"), Array(SIZE).fill("rejected"));
  const written = await ours.run(next, (to) => journal.read(to));
  assert.deepEqual(written, [...Array<string>(SIZE).fill("first"), "other", "next"]);

  // The loss of the lease closes its connections, and nothing more is sent.
  const last = await ours.run(next, async (opened) => opened);
  await direct.locks.revoke(lock, "by the test");
  await aborted(next.signal);
  await assert.rejects(
    ours.run(next, (to) => journal.append(to, "lost")),
    LeaseLostError,
  );
  assert.deepEqual(await onEach(last, "lost"), Array(SIZE).fill("rejected"));
  others.close();
}

test("16 connections of node-redis follow the lease over a hand-over", (t) =>
  handOver(t, "journal/node-redis", ofNodeRedis));

test("16 connections of ioredis follow the lease over a hand-over", (t) =>
  handOver(t, "journal/ioredis", ofIoredis));

test("what a connection of ioredis lost is not sent again", async () => {
  const redis = ioredis((options) => new Redis({ port, ...options }));
  const lease = await direct.lock("journal/ioredis", { ttlMs: 60_000 });
  await redis.use(lease);
  await redis.run(lease, async (opened) => {
    await opened.del("journal/ioredis");
    const lost = opened.rpush("journal/ioredis", "lost");
    opened.stream.destroy();
    await assert.rejects(lost, /max retries/);
  });
  redis.close();
  await lease.release();
});

test("the next lease closes the connections of the one before", async () => {
  const redis = ofNodeRedis.open();
  const first = await direct.lock("journal/node-redis", { ttlMs: 60_000 });
  await redis.use(first);
  const old = await redis.run(first, async (pool) => pool);
  await first.release();
  const next = await direct.lock("journal/node-redis", { ttlMs: 60_000 });
  await redis.use(next);
  await assert.rejects(ofNodeRedis.append(old, "late"), /closed/i);
  await redis.run(next, (pool) => ofNodeRedis.append(pool, "next"));
  redis.close();
  await assert.rejects(
    redis.run(next, (pool) => ofNodeRedis.append(pool, "x")),
    /no lease is in use/,
  );
  await next.release();
});
