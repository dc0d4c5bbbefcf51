import assert from "node:assert/strict";
import { before, test } from "node:test";
import {
  type Client,
  InvalidError,
  type Observed,
  type StreamItem,
  TakeoverRefusedError,
} from "../src/index.js";
import { aborted, client, guard, lockServer, Proxy, renewSoon, until } from "./harness.js";

let earlier: string;
let server: string;
let storage: string;
let direct: Client;

before(async () => {
  // Tokens begin at the time of the start.
  earlier = await lockServer();
  [server, storage] = await Promise.all([lockServer(), guard()]);
  direct = client({ server, guard: storage, owner: "direct" });
});

test("shared leases exclude exclusive ones, and permits are counted", async () => {
  const shared = await Promise.all([1, 2].map(() => direct.lock("doc", { mode: "shared" })));
  await assert.rejects(direct.lock("doc"), { kind: "contended" });
  for (const lease of shared) await lease.release();
  const permit = { mode: "permit", size: 2 } as const;
  const permits = await Promise.all([1, 2].map(() => direct.lock("printers", permit)));
  await assert.rejects(direct.lock("printers", permit), { kind: "contended" });
  const other = direct.lock("printers", { mode: "permit", size: 3 });
  await assert.rejects(other, { kind: "invalid", code: "lock-kind-conflict" });
  for (const lease of permits) await lease.release();
});

test("a later incarnation takes the lock over, and the earlier one learns it", async (t) => {
  renewSoon(t);
  const of = (incarnation: string) => client({ server, owner: "batch", incarnation });
  const crashed = await of("1").lock("batch", { ttlMs: 60_000 });
  const lease = await of("2").lock("batch", { ttlMs: 60_000, takeover: true });
  assert.ok(lease.token > crashed.token);
  await aborted(crashed.signal);
  assert.throws(() => crashed.check(), { reason: "ended", ended: "superseded" });
  const back = of("1").lock("batch", { takeover: true });
  await assert.rejects(back, (error) => {
    return error instanceof TakeoverRefusedError && error.why === "was-taken-over";
  });
  const named = await of("3").lock("batch", { takeoverOf: lease.leaseId });
  await named.release();
  await assert.rejects(client({ server }).lock("batch", { takeover: true }), InvalidError);
});

test("a token above a mark is granted on request", async () => {
  const first = await direct.lock("min", {});
  await first.release();
  const minToken = first.token + 1000;
  const lease = await direct.lock("min", { minToken });
  assert.ok(lease.token > minToken);
  await lease.release();
});

test("a lock server that lost its memory is recognised, unlike a stale holder", async () => {
  const before = await direct.lock("mark", { ttlMs: 60_000 });
  await direct.objects.put(before, "mark", "before");
  // Its tokens are lower: as after the loss of its memory.
  const forgetful = client({ server: earlier, guard: storage });
  const lease = await forgetful.lock("mark", { ttlMs: 60_000 });
  const refusal = await forgetful.objects.put(lease, "mark", "x").catch((error: unknown) => error);
  const above = await lease.reacquireAbove(refusal);
  assert.ok(above.token > before.token);
  await forgetful.objects.put(above, "mark", "after");
  await assert.rejects(above.reacquireAbove(refusal), InvalidError);
  // The mark is above the second grant as well.
  await direct.locks.revoke("mark", "by the test");
  const higher = await direct.lock("mark", { minToken: above.token, ttlMs: 60_000 });
  await direct.objects.get(higher, "mark");
  const again = await forgetful.objects.put(above, "mark", "x").catch((why: unknown) => why);
  await assert.rejects(above.reacquireAbove(again), /an operator must investigate/);
  await above.release();
  // A holder whose lock has passed on is refused as well.
  const late = await direct.objects.put(before, "mark", "late").catch((error: unknown) => error);
  await direct.locks.revoke("mark", "by the test");
  await assert.rejects(before.reacquireAbove(late), { kind: "lease-lost" });
});

test("a session keeps its leases, and ends them in one step", async (t) => {
  renewSoon(t);
  const session = await direct.session({ ttlMs: 60_000 });
  const alone = await session.lock("s/alone", { waitMs: 100 });
  const set = await session.lockAll(["s/1", { lock: "s/2", mode: "shared" }]);
  assert.ok((set.leases[1]?.token ?? 0) > (set.leases[0]?.token ?? 0));
  assert.equal(set.fencingCredential.split(".").length, 2);
  await direct.objects.put(alone, "s/alone", "x");
  const beats = async () => (await direct.sessions.show(session.id)) as { heartbeats?: number };
  await until("three heartbeats", async () => ((await beats()).heartbeats ?? 0) >= 3);
  set.check();
  await alone.release();
  assert.throws(() => alone.check(), { code: "released" });
  assert.equal(await session.end(), 2);
  assert.throws(() => set.check(), { code: "released" });
  assert.equal((await direct.locks.show("s/1")).state, "free");
  assert.equal(set.leases[0]?.signal.aborted, false);
});

test("a lease of a session that is revoked is lost alone", async (t) => {
  renewSoon(t);
  const session = await direct.session({ ttlMs: 60_000 });
  const [kept, lost] = [await session.lock("r/kept"), await session.lock("r/lost")];
  await direct.locks.revoke("r/lost", "by the test");
  await aborted(lost.signal);
  assert.throws(() => lost.check(), { reason: "ended", ended: "revoked" });
  kept.check();
  await session.end();
});

test("a session without heartbeats is lost with all its leases", async () => {
  const proxy = await Proxy.before(server);
  const behind = client({ server: proxy.url });
  const work = behind.withSession({ ttlMs: 3000 }, async (session, signal) => {
    // Not before: a session that is begun late is confirmed by a heartbeat.
    proxy.fault = ({ path }) => (path.endsWith("/heartbeat") ? "hold" : "pass");
    const lease = await session.lock("gone");
    await aborted(lease.signal);
    assert.throws(() => lease.check(), { reason: "deadline" });
    signal.throwIfAborted();
  });
  await assert.rejects(work, { kind: "lease-lost", reason: "deadline" });
});

test("several locks are granted all or none", async (t) => {
  renewSoon(t);
  const holder = await direct.lock("all/2", { ttlMs: 60_000 });
  await assert.rejects(direct.lockAll(["all/1", "all/2"]), (error) => {
    return String(error).includes("all/2") && (error as { kind: string }).kind === "contended";
  });
  assert.equal((await direct.locks.show("all/1")).state, "free");
  await holder.release();
  {
    await using held = await direct.lockAll(["all/1", "all/2"], { ttlMs: 60_000 });
    assert.deepEqual(
      held.leases.map(({ lock }) => lock),
      ["all/1", "all/2"],
    );
  }
  assert.equal((await direct.locks.show("all/2")).state, "free");
  await assert.rejects(direct.lockAll(["a", "a"]), InvalidError);
  const sum = await direct.withLockAll(["all/1", "all/2"], {}, ({ leases }) => leases.length);
  assert.equal(sum, 2);
  assert.equal((await direct.locks.show("all/1")).state, "free");
  const lost = direct.withLockAll(["all/1", "all/2"], { ttlMs: 60_000 }, async (set, signal) => {
    await direct.locks.revoke("all/2", "by the test");
    await aborted(signal);
    assert.throws(() => set.check(), { ended: "revoked" });
    set.on("all/1")?.check();
  });
  await assert.rejects(lost, { kind: "lease-lost", reason: "ended", ended: "revoked" });
  await until("free", async () => (await direct.locks.show("all/1")).state === "free");
});

test("an election has one leader, whom observers see", async () => {
  const election = direct.election("office");
  assert.equal(await election.leader(), null);
  const seen: Observed[] = [];
  const controller = new AbortController();
  const observing = (async () => {
    for await (const observed of election.observe({ signal: controller.signal })) {
      seen.push(observed);
    }
  })();
  const ended = assert.rejects(observing, { name: "AbortError" });
  const terms = () => seen.map((one) => (one.state === "leader" ? one.leader.token : one.state));
  await until("vacant", () => terms().includes("vacant"));
  const first = await election.campaign({ ttlMs: 60_000, metadata: { at: "here" } });
  await until("the leader", () => terms().includes(first.token));
  const second = client({ server, owner: "second" }).election("office").campaign();
  await until("a candidate", async () => (await direct.locks.show("office")).queue_length === 1);
  await first.release();
  const { token, ...lease } = await second;
  assert.ok(token > first.token, String(lease));
  await until("the next leader", () => terms().includes(token));
  assert.equal((await election.leader())?.owner, "second");
  const leader = seen.find((one) => one.state === "leader" && one.leader.token === first.token);
  assert.deepEqual(leader?.state === "leader" && leader.leader.metadata, { at: "here" });
  controller.abort();
  await ended;
  const term = await direct.election("office/2").lead({}, (office) => office.token);
  assert.ok(term > 0);
  assert.equal(await direct.election("office/2").leader(), null);
});

test("events resume where their connection broke", async () => {
  const proxy = await Proxy.before(server);
  const stream = await client({ server: proxy.url }).events({ prefix: "ev/" });
  const items: StreamItem[] = [];
  const reading = (async () => {
    for await (const item of stream) {
      items.push(item);
      if (item.type === "event" && item.event.lock === "ev/2") return;
    }
  })();
  const kinds = () => items.map((item) => (item.type === "event" ? item.event.kind : item.type));
  await until("ready", () => kinds().includes("ready"));
  await (await direct.lock("ev/1")).release();
  await until("the release", () => kinds().includes("released"));
  proxy.fault = () => "hold";
  proxy.disconnect();
  await until("broken", () => kinds().includes("broken"));
  await (await direct.lock("ev/2")).release();
  proxy.fault = () => "pass";
  proxy.disconnect();
  await reading;
  assert.ok(kinds().includes("resumed"));
  assert.ok(!kinds().includes("gap"), kinds().join());
  const page = await direct.locks.list({ prefix: "ev/", limit: 10 });
  assert.deepEqual(page.locks, []);
});
