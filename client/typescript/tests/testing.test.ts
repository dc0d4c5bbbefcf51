/** The fake server by itself; the scenarios of all SDKs play it, too. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeServer } from "../src/testing.js";
import { aborted, renewSoon, until } from "./harness.js";

test("the fake server grants in order, and expires by a clock that the test moves", async (t) => {
  const fake = await FakeServer.start();
  t.after(() => fake.stop());
  const [alice, bob, carol] = ["alice", "bob", "carol"].map((owner) => fake.client({ owner })) as [
    ReturnType<FakeServer["client"]>,
    ReturnType<FakeServer["client"]>,
    ReturnType<FakeServer["client"]>,
  ];
  const first = await alice.lock("a", { ttlMs: 200_000 });
  await alice.objects.put(first, "a", "1");
  assert.equal(fake.mark("a"), first.token);
  const waiting = async (count: number) => (await bob.locks.show("a")).queue_length === count;
  const second = bob.lock("a", { ttlMs: 200_000, waitMs: Infinity });
  await until("one waits", () => waiting(1));
  const third = carol.lock("a", { waitMs: Infinity });
  await until("two wait", () => waiting(2));
  fake.advance(100_000);
  assert.equal((await bob.locks.show("a")).holder?.owner, "alice");
  fake.advance(100_000);
  assert.equal((await bob.locks.show("a")).holder?.owner, "bob");
  const next = await second;
  assert.ok(next.token > first.token);
  assert.equal((await bob.objects.get(next, "a"))?.text(), "1");
  await assert.rejects(alice.objects.put(first, "a", "late"), { kind: "stale", stale: true });
  await assert.rejects(alice.tryLock("a", { size: 2, mode: "permit" }), {
    code: "lock-kind-conflict",
  });
  await assert.rejects(first.release(), { kind: "lease-lost", ended: "expired" });
  const { locks } = await bob.locks.list({ prefix: "a" });
  assert.deepEqual(
    locks.map(({ lock, queue_length }) => [lock, queue_length]),
    [["a", 1]],
  );
  await next.release();
  assert.ok((await third).token > next.token);
});

test("a holder learns of a revocation and of an expired session from the fake server", async (t) => {
  renewSoon(t);
  const fake = await FakeServer.start();
  t.after(() => fake.stop());
  const client = fake.client();
  const lease = await client.lock("a", { ttlMs: 60_000 });
  await client.locks.revoke("a", "by the test");
  await aborted(lease.signal);
  assert.throws(() => lease.check(), { ended: "revoked" });
  const session = await client.session({ ttlMs: 60_000 });
  const ofSession = await session.lock("a");
  fake.advance(60_000);
  await aborted(ofSession.signal);
  assert.throws(() => session.check(), { kind: "lease-lost", ended: "session-ended" });
  await assert.rejects(client.events({ prefix: "a" }), { code: "not-offered-by-store" });
});
