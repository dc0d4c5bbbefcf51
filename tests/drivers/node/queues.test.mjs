// Job queues through the guard, unmodified: their scripts build the names of most keys.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { FlowProducer, Queue, QueueEvents, Worker } from "bullmq";
import Bull from "bull";
import BeeQueue from "bee-queue";

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
