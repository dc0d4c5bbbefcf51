/** Connections of a lease, and what a lease shows of itself, without a driver. */
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { inspect } from "node:util";
import { type Client, type Fence, InternalError, InvalidError } from "../src/index.js";
import { LeaseLostError, StaleError } from "../src/index.js";
import { errorOf, knownCode, isRetryableCode } from "../src/problem.js";
import { LeaseConnections } from "../src/redis.js";
import { Trust } from "../src/trust.js";
import { Window } from "../src/timing.js";
import { nowMs } from "../src/clock.js";
import { client, lockServer, until } from "./harness.js";

let direct: Client;

before(async () => {
  direct = client({ server: await lockServer() });
});

/** Connections that record what is sent under which credential. */
function recorded() {
  const sent: [credential: string, value: string][] = [];
  const closed: string[] = [];
  const connections = new LeaseConnections<{ set(value: string): Promise<void>; of: string }>({
    open: async ({ password }) => ({
      of: password,
      async set(value: string) {
        if (value === "refused") throw new Error("FENCED");
        sent.push([password, value]);
      },
    }),
    close: ({ of }) => closed.push(of),
    isRefusal: (error) => error instanceof Error && error.message === "FENCED",
  });
  return { sent, closed, connections };
}

test("late work of an earlier lease is not run under the next one", async () => {
  const { sent, connections } = recorded();
  const first = await direct.lock("connections/late", { ttlMs: 60_000 });
  await connections.use(first);
  await connections.run(first, (to) => to.set("in time"));
  // It was revoked, and this process has not noticed: the lease still checks well.
  await direct.locks.revoke("connections/late", "by the test");
  const next = await direct.lock("connections/late", { ttlMs: 60_000 });
  await connections.use(next);
  const late = connections.run(first, (to) => to.set("late"));
  await assert.rejects(late, LeaseLostError);
  await connections.run(next, (to) => to.set("next"));
  assert.deepEqual(sent, [
    [first.fencingCredential, "in time"],
    [next.fencingCredential, "next"],
  ]);
  await next.release();
  // A late `use` of a lease that ended leaves the connections of the present one.
  const present = await direct.lock("connections/late", { ttlMs: 60_000 });
  await connections.use(present);
  await assert.rejects(connections.use(next), InvalidError);
  await connections.run(present, (to) => to.set("present"));
  await assert.rejects(
    connections.run(present, (to) => to.set("refused")),
    StaleError,
  );
  await assert.rejects(
    connections.run(present, (to) => to.set("after a refusal")),
    StaleError,
  );
  assert.equal(sent.length, 3);
  await present.release();
});

test("the release of a lease closes its connections", async () => {
  const session = await direct.session();
  const ofSession = () => session.lock("connections/release");
  const kinds: (() => Promise<Fence & { release(): Promise<void> }>)[] = [
    () => direct.lock("connections/release"),
    ofSession,
  ];
  for (const acquire of kinds) {
    const { closed, connections } = recorded();
    const lease = await acquire();
    await connections.use(lease);
    await lease.release();
    await until("the connections are closed", () => closed.length === 1);
    assert.equal(lease.signal.aborted, false, "a release is no loss");
  }
  const { closed, connections } = recorded();
  await connections.use(await ofSession());
  await session.end();
  await until("the connections are closed", () => closed.length === 1);
});

test("a lease that is printed does not show its credential", async () => {
  const session = await direct.session();
  const leases = [
    await direct.lock("connections/print"),
    await session.lock("connections/print/session"),
  ];
  for (const lease of leases) {
    const { fencing_token: header } = lease.grant;
    assert.equal(header, lease.fencingToken);
    for (const shown of [inspect(lease), inspect({ lease }, { depth: 9 }), JSON.stringify(lease)]) {
      assert.ok(!shown.includes("fc1_") && !shown.includes("sig="), shown);
      assert.ok(shown.includes(lease.lock) && shown.includes(String(lease.token)), shown);
    }
  }
  await Promise.all(leases.map((lease) => lease.release()));
  await session.end();
});

test("a warning that throws does not end the watch of the lease", async () => {
  const thrown: string[] = [];
  // The warning comes at once, and a process that was stopped between the two gives none.
  const limits = { maxHoldMs: 4000, warnBeforeMs: 3990 };
  const onWarning = () => {
    throw new Error("of the callback");
  };
  const log = (_: string, message: string) => thrown.push(message);
  const trust = new Trust("a", new Window(nowMs(), 60_000), limits, onWarning, log);
  await until("the lease is held for too long", () => trust.signal.aborted);
  assert.match(thrown.join(), /^a: onWarning has thrown: Error: of the callback$/);
});

test("a code that names a member of every object is an unknown code", () => {
  for (const code of ["constructor", "toString", "__proto__", "hasOwnProperty"]) {
    const problem = { code, status: 500, detail: "x" };
    assert.ok(errorOf(problem, null, "a call") instanceof InternalError, code);
    assert.equal(knownCode(problem), "unknown", code);
    assert.equal(isRetryableCode(problem), false, code);
  }
});
