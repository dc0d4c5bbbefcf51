/** Options and values as programs without a compiler give them, and the short forms of a lock. */
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { Client, InvalidError } from "../src/index.js";
import { client, guard, lockServer, until } from "./harness.js";

let direct: Client;

before(async () => {
  const [server, storage] = await Promise.all([lockServer(), guard()]);
  direct = client({ server, guard: storage, owner: "direct" });
});

// As from JavaScript: any value in any place.
const anything = (value: unknown) => value as never;

async function refusal(call: () => unknown): Promise<string> {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof InvalidError, String(error));
    return error.message;
  }
  return assert.fail(`${call} was not refused`);
}

test("an option that a call lacks is refused, with the one that was meant", async () => {
  // Nothing listens there: a request would fail as unavailable.
  const made = client({ server: "http://127.0.0.1:1", guard: "http://127.0.0.1:1" });
  const lease = await direct.lock("options/lease", { ttlMs: 60_000 });
  for (const [call, why] of [
    [
      () => new Client(anything({ url: "https://prod" })),
      /new Client: .* url; did you mean server/,
    ],
    [() => new Client(anything({ sever: "https://prod" })), /no option sever; did you mean server/],
    [
      () => made.lock("a", anything({ ttl: 15 })),
      /lock: there is no option ttl; did you mean ttlMs/,
    ],
    [() => made.lock("a", anything({ wait_ms: 15 })), /no option wait_ms; did you mean waitMs/],
    [() => made.lock("a", anything({ retries: 3 })), /the options are ttlMs, metadata/],
    [() => made.lock("a", anything({ constructor: 3 })), /no option constructor/],
    [() => made.tryLock("a", anything({ waitMs: 3 })), /tryLock: there is no option waitMs/],
    [() => made.withLock("a", anything({ ttl: 15 }), () => {}), /did you mean ttlMs/],
    [() => made.lockAll(["a"], anything({ ttl: 15 })), /did you mean ttlMs/],
    [() => made.lockAll([anything({ name: "a" })]), /no option name; the options are lock/],
    [() => made.session(anything({ ttl: 15 })), /session: .* did you mean ttlMs/],
    [() => made.reentrant("a", anything({ ttl: 15 })), /did you mean ttlMs/],
    [() => made.election("a").campaign(anything({ waitMs: 1 })), /campaign: .* no option waitMs/],
    [
      () =>
        made
          .election("a")
          .observe(anything({ lock: 1 }))
          .next(),
      /observe: .* no option lock/,
    ],
    [() => made.events(anything({ locks: "a" })), /did you mean lock/],
    [() => made.isLocked("a", anything({ sginal: 1 })), /did you mean signal/],
    [() => made.locks.list(anything({ prefixes: "a" })), /did you mean prefix/],
    [() => made.locks.revoke("a", "b", anything({ lease: "a" })), /no option lease/],
    [() => made.objects.put(lease, "a", "b", anything({ ifmatch: "a" })), /did you mean ifMatch/],
    [() => made.objects.get(lease, "a", anything({ etag: "a" })), /no option etag/],
    [() => made.objects.delete(lease, "a", anything({ etag: "a" })), /no option etag/],
    [() => made.objects.seal(lease, anything({ etag: "a" })), /no option etag/],
  ] as const) {
    assert.match(await refusal(call), why);
  }
  const session = await direct.session({ ttlMs: 60_000 });
  const ofSession = () => session.lock("options/session", anything({ ttlMs: 15 }));
  assert.match(await refusal(ofSession), /no option ttlMs/);
  await Promise.all([session.end(), lease.release()]);
});

test("a value of another type is refused by its name and its type", async () => {
  const lease = await direct.lock("options/type", { ttlMs: 60_000 });
  for (const [call, why] of [
    [() => new Client(anything("http://me:hunter2@prod")), /options must be an object.*a string/],
    [() => new Client(anything(new URL("http://prod"))), /as in { server: … }, not an? URL/],
    [() => new Client(anything(null)), /not null/],
    [() => new Client(anything({ server: new URL("http://prod") })), /server must be a string/],
    [() => new Client(anything({ token: ["hunter2"] })), /token must be a string, not an array/],
    [() => direct.lock("a", anything(15_000)), /lock: the options must be .*, not a number/],
    [() => direct.lock("a", { ttlMs: anything("15s") }), /ttlMs "15s" must be a whole number/],
    [() => direct.lock("a", { ttlMs: anything(15n) }), /ttlMs 15n must be a whole number/],
    [() => direct.lock("a", { ttlMs: NaN }), /ttlMs NaN must be a whole number/],
    [() => direct.lock("a", { patienceMs: Infinity }), /patienceMs Infinity must be/],
    [() => direct.lock(anything(["a"])), /lock name must be a string, not an array/],
    [() => direct.lock("a", { takeover: anything("yes") }), /takeover must be true or false/],
    [() => direct.lock("a", { onWarning: anything({}) }), /onWarning must be a function, not an o/],
    [
      () => direct.lock("a", { signal: anything(new AbortController()) }),
      /signal must be an AbortSignal, not an AbortController/,
    ],
    [() => direct.withLock("a", {}, anything(undefined)), /withLock: the work must be a function/],
    [() => direct.withLock("a", anything({})), /the work must be a function, not undefined/],
    [() => direct.withSession({}, anything("x")), /the work must be a function, not a string/],
    [() => direct.election("a").lead({}, anything(1)), /lead: the work must be a function/],
    [() => direct.lockAll(anything("a")), /locks must be an array, not a string/],
    [
      () => direct.objects.put(lease, "a", anything({ x: 1 })),
      /body must be .*not an object; JSON/,
    ],
    [() => direct.objects.put(lease, "a", anything([1])), /body must be .*, not an array/],
    [() => direct.objects.put(anything("a"), "a", "b"), /must be a lease, not a string/],
    [() => direct.objects.get(anything(null), "a"), /must be a lease, not null/],
    [() => direct.locks.revoke("a", anything(7)), /reason must be a string, not a number/],
  ] as const) {
    const message = await refusal(call);
    assert.match(message, why);
    assert.doesNotMatch(message, /hunter2/);
  }
  assert.equal((await direct.locks.show("a")).state, "free");
  await lease.release();
});

test("the work of a block may stand in the place of its options", async () => {
  const held = await direct.withLock("options/work", () => direct.isLocked("options/work"));
  assert.equal(held, true);
  assert.equal(await direct.isLocked("options/work"), false);
  assert.equal(await direct.withLockAll(["options/work"], ({ leases }) => leases.length), 1);
  assert.equal(await direct.withSession((session) => session.leases.length), 0);
});

test("a lock is tried once, and a lock that is held is no error", async () => {
  const lease = await direct.tryLock("options/try", { ttlMs: 60_000 });
  assert.ok(lease !== null);
  assert.equal(await direct.tryLock("options/try"), null);
  await lease.release();
  const away = client({ server: "http://127.0.0.1:1" });
  await assert.rejects(away.tryLock("options/try", { patienceMs: 100 }), { kind: "unavailable" });
});

test("a wait without end lasts until the lock is free", async () => {
  const lease = await direct.lock("options/wait", { ttlMs: 60_000 });
  const next = direct.lock("options/wait", { waitMs: Infinity });
  const waiting = async () => (await direct.locks.show("options/wait")).queue_length === 1;
  await until("a waiter", waiting);
  await lease.release();
  await (await next).release();
  const controller = new AbortController();
  const held = await direct.lock("options/wait", { ttlMs: 60_000 });
  const ended = direct.lock("options/wait", { waitMs: Infinity, signal: controller.signal });
  await until("a waiter", waiting);
  controller.abort();
  await assert.rejects(ended, { name: "AbortError" });
  await held.release();
});
