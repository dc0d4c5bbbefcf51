import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import {
  type Client,
  ContendedError,
  type FencepostError,
  InvalidError,
  LeaseLostError,
  OutcomeUnknownError,
  type QueuePosition,
  StaleError,
  UnavailableError,
} from "../src/index.js";
import { nowMs } from "../src/clock.js";
import {
  aborted,
  block,
  client,
  guard,
  lockServer,
  PATIENCE_MS,
  Proxy,
  renewSoon,
  until,
} from "./harness.js";

let server: string;
let storage: string;
let direct: Client;

before(async () => {
  [server, storage] = await Promise.all([lockServer(), guard()]);
  direct = client({ server, guard: storage, owner: "direct" });
});

/** A client behind a proxy of its own. */
async function proxied(): Promise<{ proxy: Proxy; behind: Client }> {
  const proxy = await Proxy.before(server);
  return { proxy, behind: client({ server: proxy.url, guard: storage, owner: "behind" }) };
}

async function isFree(name: string): Promise<boolean> {
  return (await direct.locks.show(name)).state === "free";
}

test("a lock is held, renewed, refused to others and released", async (t) => {
  renewSoon(t);
  const { proxy, behind } = await proxied();
  const lease = await behind.lock("plain/1", { ttlMs: 60_000, metadata: { job: 7 } });
  const { holder } = await direct.locks.show("plain/1");
  assert.deepEqual([holder?.owner, holder?.metadata], ["behind", { job: 7 }]);
  await until("three renewals", () => proxy.of("/renew").length >= 3);
  lease.check();
  await assert.rejects(direct.lock("plain/1"), (error) => {
    assert.ok(error instanceof ContendedError && error.retryable && error.status === 423);
    return error.holder?.owner === "behind" && error.queueLength !== null;
  });
  await lease.release();
  assert.ok(await isFree("plain/1"));
  assert.throws(() => lease.check(), { kind: "invalid", code: "released" });
  await assert.rejects(direct.objects.put(lease, "plain/1", "late"), { code: "released" });
  await assert.rejects(lease.release(), InvalidError);
  assert.equal(proxy.of("/release").length, 1);
});

test("a lost reply is repeated with the same lease id, and there is one grant", async () => {
  const { proxy, behind } = await proxied();
  proxy.fault = () => (proxy.of("/acquire").length < 2 ? "drop-reply" : "pass");
  const lease = await behind.lock("lost-reply", { ttlMs: 60_000, patienceMs: PATIENCE_MS });
  const ids = new Set(proxy.of("/acquire").map(({ body }) => body["lease_id"]));
  assert.equal(proxy.of("/acquire").length, 3);
  assert.deepEqual([...ids], [lease.leaseId]);
  await lease.release();
});

test("a grant is trusted from before its request was sent", async () => {
  const { proxy, behind } = await proxied();
  let arrivedAtMs = 0;
  proxy.fault = ({ path }) => {
    if (!path.endsWith("/acquire")) return "pass";
    arrivedAtMs = nowMs();
    block(300);
    return "pass";
  };
  const lease = await behind.lock("sent-at", { ttlMs: 60_000 });
  // A request cannot arrive before it is sent.
  assert.ok(nowMs() + lease.remainingMs() <= arrivedAtMs + 48_000, `${lease.remainingMs()}`);
  await lease.release();
});

test("a grant that arrives worn is renewed before it is used", async () => {
  const { proxy, behind } = await proxied();
  const holder = await direct.lock("worn", { ttlMs: 60_000 });
  const waiting = behind.lock("worn", { ttlMs: 6000, waitMs: PATIENCE_MS });
  let isWaiting = true;
  void waiting.then(() => (isWaiting = false));
  const renewals: boolean[] = [];
  proxy.fault = ({ path }) => {
    if (path.endsWith("/renew")) renewals.push(isWaiting);
    return "pass";
  };
  await until("a waiter", async () => (await direct.locks.show("worn")).queue_length === 1);
  // The waiter counts from before its request: half of the trusted time.
  const wornAtMs = nowMs() + 2401;
  await until("a worn wait", () => nowMs() > wornAtMs);
  await holder.release();
  const lease = await waiting;
  const remainingMs = lease.remainingMs();
  assert.equal(renewals[0], true);
  assert.ok(nowMs() + remainingMs > wornAtMs + 4800, "the lease counts from its renewal");
  await lease.release();
});

test("an acquire that was given up is released in the background", async () => {
  const { proxy, behind } = await proxied();
  proxy.fault = ({ path }) => (path.endsWith("/acquire") ? "hold-reply" : "pass");
  const controller = new AbortController();
  const acquiring = behind.lock("given-up", { ttlMs: 60_000, signal: controller.signal });
  const failed = assert.rejects(acquiring, { name: "AbortError" });
  await until("the grant", async () => !(await isFree("given-up")));
  controller.abort();
  await failed;
  await behind.close();
  assert.equal(proxy.of("/release").length, 1);
  assert.ok(await isFree("given-up"));
});

test("a waiter whose signal is aborted leaves the queue", async () => {
  const holder = await direct.lock("queue", { ttlMs: 60_000 });
  const controller = new AbortController();
  const waiting = direct.lock("queue", { waitMs: 60_000, signal: controller.signal });
  const failed = assert.rejects(waiting, { name: "AbortError" });
  await until("a waiter", async () => (await direct.locks.show("queue")).queue_length === 1);
  controller.abort();
  await failed;
  await until("no waiter", async () => (await direct.locks.show("queue")).queue_length === 0);
  await holder.release();
});

test("a waiter sees its position in the queue, which is served in order", async () => {
  const holder = await direct.lock("fifo", { ttlMs: 60_000 });
  const first = direct.lock("fifo", { waitMs: 60_000, ttlMs: 60_000 });
  await until("a waiter", async () => (await direct.locks.show("fifo")).queue_length === 1);
  const seen: number[] = [];
  const onQueued = ({ position }: QueuePosition) => seen.push(position);
  const second = direct.lock("fifo", { waitMs: 60_000, ttlMs: 60_000, onQueued });
  await until("second of two", () => seen.includes(2));
  await holder.release();
  const served = await first;
  await until("next", () => seen.includes(1));
  await served.release();
  const last = await second;
  assert.ok(last.token > served.token);
  assert.deepEqual(seen, [2, 1]);
  await last.release();
});

test("a block that fails throws its own error, even if the release fails", async () => {
  const { proxy, behind } = await proxied();
  const own = new Error("of the work");
  const work = behind.withLock("own-error", { ttlMs: 600_000 }, async () => {
    // The lease ends at the server: its release is refused.
    await direct.locks.revoke("own-error", "by the test");
    throw own;
  });
  await assert.rejects(work, (error) => error === own);
  assert.equal(proxy.of("/release").length, 1);
});

test("a block returns its value and releases the lock", async () => {
  const token = await direct.withLock("value", {}, (lease) => lease.token);
  assert.ok(token > 0);
  assert.ok(await isFree("value"));
});

test("the signal of a block is aborted when the lease is lost, and the block says so", async () => {
  const { proxy, behind } = await proxied();
  let reason: unknown;
  const work = behind.withLock("lost", { ttlMs: 1500 }, async (lease, signal) => {
    // Not before: a grant that arrives worn is renewed.
    proxy.fault = ({ path }) => (path.endsWith("/renew") ? "hold" : "pass");
    await aborted(signal);
    reason = signal.reason;
    assert.throws(() => lease.check(), LeaseLostError);
    signal.throwIfAborted();
  });
  await assert.rejects(work, { kind: "lease-lost", reason: "deadline", lost: true });
  assert.ok(reason instanceof LeaseLostError);
});

test("a block is cancelled at once when its lease is revoked", async (t) => {
  renewSoon(t);
  const work = direct.withLock("revoked", { ttlMs: 60_000 }, async (_, signal) => {
    await direct.locks.revoke("revoked", "by the test");
    await aborted(signal);
  });
  await assert.rejects(work, { kind: "lease-lost", reason: "ended", ended: "revoked" });
});

test("a block that ends well after its lease was lost is no success", async () => {
  const work = direct.withLock("blocked", { ttlMs: 1000 }, () => {
    block(900);
    return "done";
  });
  await assert.rejects(work, { kind: "lease-lost", reason: "deadline" });
});

test("after a blocked loop the first look at the lease says that it is lost", async () => {
  const lease = await direct.lock("look", { ttlMs: 1000 });
  assert.equal(lease.signal.aborted, false);
  block(900);
  // No timer and no renewal has run since.
  assert.equal(lease.remainingMs(), 0);
  assert.throws(() => lease.check(), { kind: "lease-lost", reason: "deadline" });
  assert.equal(lease.signal.aborted, true);
});

test("a fenced call after a blocked loop sends nothing", async () => {
  const proxy = await Proxy.before(storage);
  const fenced = client({ server, guard: proxy.url });
  const lease = await fenced.lock("send-nothing", { ttlMs: 1000 });
  block(900);
  await assert.rejects(fenced.objects.put(lease, "send-nothing", "late"), LeaseLostError);
  assert.equal(proxy.requests.length, 0);
});

test("work that does not report progress loses its lease", async () => {
  const reporting = await direct.lock("progress", { ttlMs: 60_000, progressWithinMs: 60_000 });
  reporting.progress();
  await reporting.release();
  const lease = await direct.lock("progress", { ttlMs: 60_000, progressWithinMs: 100 });
  await aborted(lease.signal);
  assert.throws(() => lease.progress(), { reason: "no-progress" });
  const held = await direct.lock("max-hold", { ttlMs: 60_000, maxHoldMs: 100 });
  await aborted(held.signal);
  assert.throws(() => held.check(), { reason: "held-too-long" });
});

test("a warning comes before the loss", async () => {
  const warned: string[] = [];
  const lease = await direct.lock("warning", {
    ttlMs: 60_000,
    maxHoldMs: 60_000,
    warnBeforeMs: 59_900,
    onWarning: ({ why }) => warned.push(why.reason),
  });
  await until("the warning", () => warned.length > 0);
  lease.check();
  assert.deepEqual(warned, ["held-too-long"]);
  await lease.release();
});

test("a stale holder is refused by the guard, and the newest one reads what it wrote", async () => {
  const old = await direct.lock("orders/42", { ttlMs: 60_000 });
  await direct.objects.put(old, "orders/42", "old", { ifAbsent: true });
  await direct.locks.revoke("orders/42", "by the test");
  const next = await direct.lock("orders/42", { ttlMs: 60_000 });
  assert.ok(next.token > old.token);
  const { mark, etag } = await direct.objects.put(next, "orders/42", "new");
  assert.equal(mark, next.token);
  const late = direct.objects.put(old, "orders/42", "late");
  await assert.rejects(late, (error) => {
    // The loss may be noticed here first.
    if (error instanceof LeaseLostError) return true;
    assert.ok(error instanceof StaleError && error.stale && !error.retryable);
    return error.mark === next.token && error.outcome === "not-applied";
  });
  const found = await direct.objects.get(next, "orders/42");
  assert.deepEqual([found?.text(), found?.etag], ["new", etag]);
  const other = direct.objects.put(next, "orders/42", "x", { ifMatch: '"other"' });
  await assert.rejects(other, { kind: "precondition" });
  await direct.objects.delete(next, "orders/42");
  assert.equal(await direct.objects.get(next, "orders/42"), null);
  assert.deepEqual(await direct.objects.seal(next), { lock: "orders/42", mark: next.token });
  await next.release();
});

test("a write whose reply was lost is applied once", async () => {
  const proxy = await Proxy.before(storage);
  const fenced = client({ server, guard: proxy.url });
  const lease = await fenced.lock("once", { ttlMs: 60_000 });
  proxy.fault = () => (proxy.requests.length === 0 ? "drop-reply" : "pass");
  const applied = await fenced.objects.put(lease, "once", "x", { ifAbsent: true });
  assert.equal(applied.replayed, true);
  assert.equal(proxy.requests.length, 2);
  await lease.release();
});

test("a web server that is no Fencepost is named, and a write there is no success", async () => {
  const proxy = await Proxy.before(server);
  proxy.page = "<html>Welcome";
  const wrong = client({ server, guard: proxy.url });
  const lease = await wrong.lock("foreign", { ttlMs: 60_000 });
  const isNamed = ({ kind, message }: FencepostError) =>
    kind === "internal" && message.includes(proxy.url) && message.includes("<html>Welcome");
  await assert.rejects(wrong.objects.put(lease, "foreign", "x"), isNamed);
  await assert.rejects(wrong.objects.get(lease, "foreign"), isNamed);
  await assert.rejects(client({ server: proxy.url }).lock("foreign"), isNamed);
  await lease.release();
});

test("errors say whether nothing was done or the outcome is unknown", async () => {
  const nowhere = client({ server: "http://127.0.0.1:1" });
  const unreachable = nowhere.lock("a", { patienceMs: 100 });
  await assert.rejects(
    unreachable,
    (error) => error instanceof UnavailableError && error.retryable,
  );
  const { proxy, behind } = await proxied();
  proxy.fault = ({ path }) => (path.endsWith("/acquire") ? "drop-reply" : "pass");
  const unknown = behind.lock("unknown", { patienceMs: 200, ttlMs: 60_000 });
  await assert.rejects(unknown, (error) => {
    return error instanceof OutcomeUnknownError && error.outcome === "unknown";
  });
  await behind.close();
  assert.ok(await isFree("unknown"));
});

test("await using releases at the end of the block", async () => {
  {
    await using lease = await direct.lock("using", { ttlMs: 60_000 });
    lease.check();
  }
  assert.ok(await isFree("using"));
  {
    await using lease = await direct.lock("using", { ttlMs: 60_000 });
    await lease.release();
  }
});

test("a holder enters its lock again, and others do not", async () => {
  const order = direct.reentrant("again", { ttlMs: 60_000 });
  const other = direct.reentrant("again", { ttlMs: 60_000 });
  const [outer, inner] = await order.run(async (lease) => {
    await assert.rejects(
      other.run(() => {}),
      ContendedError,
    );
    return [lease.token, await order.run(({ token }) => token)];
  });
  assert.equal(outer, inner);
  assert.ok(await isFree("again"));
  await other.run(() => {});
});

test("a lease belongs to its thread, and a worker thread contends for the lock", async () => {
  const lease = await direct.lock("thread", { ttlMs: 60_000 });
  assert.throws(() => structuredClone(lease).check());
  const code = `
    const { workerData, parentPort } = require("node:worker_threads");
    import(workerData.module).then(async ({ Client }) => {
      const client = new Client({ env: {}, server: workerData.server });
      const error = await client.lock("thread").catch((why) => why);
      parentPort.postMessage(error.kind);
    });`;
  const module = pathToFileURL(require.resolve("../src/index.js")).href;
  const worker = new Worker(code, { eval: true, workerData: { module, server } });
  assert.deepEqual(await once(worker, "message"), ["contended"]);
  await worker.terminate();
  await lease.release();
});

test("a held lease is renewed while its process lives, and does not keep it alive", async () => {
  const driver = require.resolve("../src/index.js");
  const code = `
    import { Client } from ${JSON.stringify(driver)};
    const client = new Client({ env: {}, server: ${JSON.stringify(server)}, owner: "child" });
    await client.lock("child", { ttlMs: 1500 });`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], {
    stdio: "inherit",
  });
  assert.deepEqual(await once(child, "exit"), [0, null]);
  const { state, holder } = await direct.locks.show("child");
  assert.ok(state === "free" || holder?.owner === "child");
});

test("a block keeps its process alive until it has ended", async () => {
  const driver = require.resolve("../src/index.js");
  const code = `
    import { Client } from ${JSON.stringify(driver)};
    const client = new Client({ env: {}, log: () => {}, server: ${JSON.stringify(server)} });
    const end = client.withLock("alive", { ttlMs: 60000, maxHoldMs: 200 }, (_, signal) =>
      new Promise((resolve) => {
        signal.addEventListener("abort", resolve);
        if (signal.aborted) resolve();
      }));
    await end.catch((error) => process.exit(error.reason === "held-too-long" ? 7 : 1));`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], {
    stdio: "inherit",
  });
  assert.deepEqual(await once(child, "exit"), [7, null]);
});
