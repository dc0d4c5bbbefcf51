// Job queues through the guard, unmodified: their scripts build the names of most keys.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import Bull from "bull";
import BeeQueue from "bee-queue";
import Redis from "ioredis";
import Redlock from "redlock";

const url = new URL(process.env.FENCE_URL);
// BullMQ wants its connections never to give up on a command.
const connection = {
  host: url.hostname,
  port: Number(url.port),
  username: url.username || undefined,
  password: url.password || undefined,
  maxRetriesPerRequest: null,
};
const opened = [];
function open(made) {
  made.on?.("error", () => {});
  opened.push(made);
  return made;
}

after(async () => {
  for (const made of opened.reverse()) await made.close();
});

/** Resolves with the value of the first event of this name that `accept` takes. */
function once(emitter, event, accept = () => true) {
  return new Promise((resolve) => {
    emitter.on(event, (...values) => {
      if (accept(...values)) resolve(values);
    });
  });
}

test("BullMQ: jobs, delays, retries and a flow", async () => {
  const queue = open(new Queue("work", { connection }));
  const events = open(new QueueEvents("work", { connection }));
  await events.waitUntilReady();
  let attempts = 0;
  const work = async (job) => {
    if (job.name === "fails twice" && ++attempts < 3) throw new Error("not yet");
    if (job.name === "parent") return Object.values(await job.getChildrenValues()).sort();
    return `${job.name}: ${job.data.value ?? ""}`;
  };
  open(new Worker("work", work, { connection, concurrency: 4 }));

  const plain = await queue.add("plain", { value: 42 });
  assert.equal(await plain.waitUntilFinished(events), "plain: 42");
  const delayed = await queue.add("delayed", {}, { delay: 200 });
  assert.equal(await delayed.waitUntilFinished(events), "delayed: ");
  const retried = await queue.add("fails twice", {}, { attempts: 3, backoff: { type: "fixed", delay: 50 } });
  await retried.waitUntilFinished(events);
  assert.equal(attempts, 3);
  const many = await queue.addBulk(Array.from({ length: 50 }, (_, n) => ({ name: "bulk", data: { value: n } })));
  const values = await Promise.all(many.map((job) => job.waitUntilFinished(events)));
  assert.deepEqual(values, many.map((_, n) => `bulk: ${n}`));
  const urgent = await queue.add("urgent", {}, { priority: 1, deduplication: { id: "one" } });
  assert.equal(await urgent.waitUntilFinished(events), "urgent: ");

  const flows = open(new FlowProducer({ connection }));
  const children = [1, 2].map((value) => ({ name: "child", queueName: "work", data: { value } }));
  const flow = await flows.add({ name: "parent", queueName: "work", children });
  assert.deepEqual(await flow.job.waitUntilFinished(events), ["child: 1", "child: 2"]);

  const ticked = once(events, "completed", ({ jobId }) => jobId.startsWith("repeat:"));
  await queue.upsertJobScheduler("tick", { every: 100 }, { name: "tick" });
  await ticked;
  assert.equal(await queue.removeJobScheduler("tick"), true);

  await queue.pause();
  const left = await queue.add("left", {});
  assert.equal(await left.getState(), "waiting");
  assert.equal((await queue.getJobCounts("waiting", "paused")).waiting >= 0, true);
  await queue.resume();
  await left.waitUntilFinished(events);
  await queue.obliterate({ force: true });
  assert.deepEqual(await queue.getJobs(), []);
});

test("BullMQ: a flow over two queues, a rate limit, cron, retries by hand, and obliterate", async () => {
  const queue = open(new Queue("parents", { connection }));
  const children = open(new Queue("children", { connection }));
  const events = open(new QueueEvents("parents", { connection }));
  const childEvents = open(new QueueEvents("children", { connection }));
  await Promise.all([events.waitUntilReady(), childEvents.waitUntilReady()]);
  let broken = true;
  const work = async (job) => {
    if (job.name === "broken" && broken) throw new UnrecoverableError("never");
    await job.log("worked");
    await job.updateProgress(100);
    return job.data.value ?? null;
  };
  open(new Worker("children", work, { connection, limiter: { max: 10, duration: 50 } }));
  const parents = open(new Worker("parents", work, { connection, concurrency: 2 }));
  const flows = open(new FlowProducer({ connection }));

  // Three generations; the rate limit delays the youngest.
  const leaves = Array.from({ length: 25 }, (_, value) => ({ name: "leaf", queueName: "children", data: { value } }));
  const middle = { name: "middle", queueName: "parents", data: { value: 1 }, children: leaves };
  const flow = await flows.add({ name: "root", queueName: "parents", data: { value: 2 }, children: [middle] });
  assert.equal(await flow.job.waitUntilFinished(events), 2);
  const tree = await flows.getFlow({ id: flow.job.id, queueName: "parents" });
  assert.equal(tree.children[0].children.length, leaves.length);
  const leaf = tree.children[0].children[0].job;
  assert.deepEqual([leaf.progress, (await children.getJobLogs(leaf.id)).logs], [100, ["worked"]]);

  // A child that fails, fails its parent; what failed is run again by hand.
  const failing = { name: "broken", queueName: "children", opts: { failParentOnFailure: true } };
  const failed = await flows.add({ name: "fails", queueName: "parents", children: [failing] });
  await assert.rejects(failed.job.waitUntilFinished(events), /failed/);
  broken = false;
  const again = await children.getJob(failed.children[0].job.id);
  await again.retry("failed");
  await again.waitUntilFinished(childEvents);
  assert.equal(await children.getFailedCount(), 0);

  // A flow is removed with its children before they run.
  await parents.pause();
  await children.pause();
  const unwanted = await flows.add({ name: "unwanted", queueName: "parents", children: leaves.slice(0, 2) });
  await unwanted.job.remove();
  assert.equal(await children.getWaitingCount(), 0);
  await children.resume();
  parents.resume();

  const ran = once(events, "completed", ({ jobId }) => jobId.startsWith("repeat:"));
  await queue.upsertJobScheduler("each second", { pattern: "* * * * * *" }, { name: "tick" });
  await ran;
  assert.equal((await queue.getJobSchedulers()).length, 1);
  await queue.removeJobScheduler("each second");
  await queue.clean(0, 100, "completed");
  await children.drain();
  for (const one of [queue, children]) {
    await one.obliterate({ force: true });
    assert.deepEqual(await one.getJobs(), []);
  }
});

test("Bull: jobs, delays and retries", async () => {
  const redis = { ...connection, maxRetriesPerRequest: undefined };
  const queue = open(new Bull("bull-work", { redis }));
  let attempts = 0;
  queue.process(async (job) => {
    if (job.data.fails && ++attempts < 2) throw new Error("not yet");
    return job.data.value;
  });
  assert.equal(await (await queue.add({ value: 1 })).finished(), 1);
  assert.equal(await (await queue.add({ value: 2 }, { delay: 100 })).finished(), 2);
  await (await queue.add({ fails: true }, { attempts: 2 })).finished();
  assert.equal(attempts, 2);
  await queue.obliterate({ force: true });
});

test("bee-queue: jobs and retries", async () => {
  const queue = open(new BeeQueue("bee-work", { redis: connection, activateDelayedJobs: true }));
  await queue.ready();
  let attempts = 0;
  queue.process(async (job) => {
    if (job.data.fails && ++attempts < 2) throw new Error("not yet");
    return job.data.value;
  });
  for (const [data, retries] of [[{ value: 1 }, 0], [{ fails: true, value: 2 }, 2]]) {
    const job = queue.createJob(data).retries(retries);
    const done = once(job, "succeeded");
    await job.save();
    assert.deepEqual(await done, [data.value]);
  }
});

test("node redlock: acquire, extend, release", async () => {
  const client = new Redis(connection);
  client.on("error", () => {});
  opened.push({ close: () => client.disconnect() });
  const once = { retryCount: 0 };
  const redlock = new Redlock([client], once);
  const lock = await redlock.lock("redlock:invoices", 60_000);
  await assert.rejects(new Redlock([client], once).lock("redlock:invoices", 60_000), /LockError/);
  await lock.extend(200_000);
  assert.ok((await client.pttl("redlock:invoices")) > 60_000);
  const waits = new Redlock([client], { retryCount: 1000, retryDelay: 20 }).lock("redlock:invoices", 60_000);
  await lock.unlock();
  await (await waits).unlock();
  assert.equal(await client.exists("redlock:invoices"), 0);
});
