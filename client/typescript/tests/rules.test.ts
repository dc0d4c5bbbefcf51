import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { mayBeGranted, Plan } from "../src/acquire-plan.js";
import { type Attempted, untilSuccess } from "../src/attempts.js";
import { HolderClock } from "../src/clock.js";
import { Office, Patience } from "../src/election.js";
import { EventParser } from "../src/event-parser.js";
import {
  type Client,
  ContendedError,
  formatFencingToken,
  InvalidError,
  joinCredentials,
  LeaseLostError,
  parseCredential,
  parseFencingToken,
  pauseMs,
  Window,
} from "../src/index.js";
import { WorkEnd } from "../src/late-release.js";
import { Hold, WarnedEnds } from "../src/limits.js";
import { errorOf, parseProblem } from "../src/problem.js";
import { parseServerUrl } from "../src/server-url.js";
import { Failure } from "../src/transport.js";
import { untilResult } from "../src/turns.js";
import { client, file } from "./harness.js";

const problem = (code: string, status: number, more = {}) => ({
  code,
  status,
  detail: "x",
  ...more,
});
const refused = (code: string, status: number, retryAfterMs: number | null = null) =>
  Failure.refused(problem(code, status), retryAfterMs);

test("a window counts from before the send, in whole milliseconds", () => {
  const window = new Window(1000, 15_000);
  const { renewAt, deadline, killBy, expiresAt, wornAt } = window;
  assert.deepEqual(
    [renewAt, wornAt, deadline, killBy, expiresAt],
    [6000, 7000, 13_000, 15_250, 16_000],
  );
  assert.ok(window.isLive(12_999) && !window.isLive(13_000));
  assert.ok(!window.isWorn(7000) && window.isWorn(7001));
  assert.equal(window.renewalTimeoutMs(6000), 3500);
  assert.equal(window.renewalTimeoutMs(12_990), 50);
  assert.equal(new Window(0, 999).deadline, 799);
  assert.equal(new Window(0, 2 ** 52).expiresAt, 86_400_000);
  for (let attempt = 1; attempt < 40; attempt += 1) {
    const pause = pauseMs(attempt, attempt * 7919);
    assert.ok(pause >= 25 && pause <= 1000 && (attempt < 6 || pause >= 500));
  }
});

test("the holder's clock counts time in suspend", () => {
  let awakeMs = 5000;
  let alwaysMs = 9000;
  const clock = new HolderClock(
    () => awakeMs,
    () => alwaysMs,
    50,
  );
  assert.deepEqual(clock.reading(), { atMs: 5000, suspendedMs: 0 });
  awakeMs += 100;
  alwaysMs += 130;
  assert.deepEqual(clock.reading(), { atMs: 5100, suspendedMs: 0 }, "noise of the second clock");
  alwaysMs += 60_000;
  assert.deepEqual(clock.reading(), { atMs: 65_130, suspendedMs: 60_030 });
  assert.deepEqual(clock.reading(), { atMs: 65_130, suspendedMs: 60_030 });
  alwaysMs -= 10_000;
  assert.equal(clock.reading().atMs, 65_130, "never back");
  alwaysMs += 3000;
  assert.equal(clock.reading().atMs, 68_130);
});

test("a suspend stops the clock of progress alone", () => {
  const start = { atMs: 0, suspendedMs: 0 };
  const resumed = { atMs: 610_000, suspendedMs: 600_000 };
  const window = new Window(0, 86_400_000);
  assert.equal(
    new Hold({ progressWithinMs: 30_000 }, start).nextEnd(window, resumed).endsAtMs,
    630_000,
  );
  assert.equal(new Hold({ maxHoldMs: 60_000 }, start).nextEnd(window, resumed).endsAtMs, 60_000);
});

test("each end is warned of once until it moves", () => {
  const at = (atMs: number) => ({ atMs, suspendedMs: 0 });
  const window = new Window(0, 86_400_000);
  const hold = new Hold(
    { progressWithinMs: 30_000, maxHoldMs: 60_000, warnBeforeMs: 10_000 },
    at(0),
  );
  const warned = new WarnedEnds();
  const next = (atMs: number) => {
    const [when, warning] = hold.warnAt(window, at(atMs), warned) ?? assert.fail();
    warned.record(warning);
    return [when, warning.endsAtMs];
  };
  assert.deepEqual(next(0), [20_000, 30_000]);
  hold.progress(at(25_000));
  assert.deepEqual(next(25_000), [45_000, 55_000]);
  assert.deepEqual(next(45_000), [50_000, 60_000]);
});

test("an acquire repeats what may help, and never beyond its times", () => {
  const plan = () => new Plan(0, { waitMs: 1000, patienceMs: 5000 });
  const step = (failure: Failure, nowMs: number) => plan().after(failure, nowMs, 0).do;
  assert.equal(step(Failure.notSent("x"), 5900), "retry");
  assert.equal(step(Failure.noReply("x"), 5990), "fail");
  assert.equal(step(refused("lock-held", 423), 900), "retry");
  assert.equal(step(refused("lock-held", 423), 1000), "fail");
  assert.equal(step(refused("outcome-unknown", 504), 0), "retry");
  assert.equal(step(refused("forbidden", 403), 0), "fail");
  assert.equal(step(refused("lease-lost", 410), 0), "restart");
  assert.deepEqual(plan().after(refused("store-unavailable", 503, 2000), 0, 0), {
    do: "retry",
    pauseMs: 2000,
  });
  assert.equal(step(refused("store-unavailable", 503, 9000), 0), "fail");
  for (const [failure, isPossible] of [
    [Failure.notSent("x"), false],
    [Failure.noReply("x"), true],
    [refused("lock-held", 423), false],
    [refused("internal", 500), true],
    [refused("moon", 502), true],
  ] as const) {
    assert.equal(mayBeGranted(failure), isPossible);
  }
});

test("an attempt without a reply is overtaken, and its late reply counts", async () => {
  const waiting: ((attempted: Attempted<string>) => void)[] = [];
  const start = () => new Promise<Attempted<string>>((resolve) => waiting.push(resolve));
  const { signal } = new AbortController();
  const done = untilSuccess(
    start,
    () => 1,
    signal,
    () => {},
  );
  while (waiting.length < 3) await sleep(1);
  waiting[1]?.("done");
  assert.equal(await done, null);
  const over = untilSuccess(
    async () => ({ final: "over" }),
    () => 60_000,
    signal,
    () => {},
  );
  assert.equal(await over, "over");
});

test("a wait beyond one request is continued by the next one", async () => {
  const times = { waitMaxMs: 100, nextAfterMs: 20, overlapMs: 20, againMs: 5 };
  const sent: AbortSignal[] = [];
  let leftMs = 1000;
  const send = (waitMs: number, signal: AbortSignal) => {
    sent.push(signal);
    assert.ok(waitMs <= 100);
    if (sent.length === 2) return Promise.resolve(Failure.notSent("refused"));
    if (sent.length === 4) leftMs = 50;
    const result = new Promise<number>((resolve) => {
      if (sent.length === 4) resolve(7);
    });
    return result;
  };
  assert.equal(await untilResult(() => leftMs, send, undefined, times), 7);
  assert.equal(sent.length, 4);
  assert.ok(
    sent.every((signal) => signal.aborted),
    "all are dropped at the end",
  );
});

test("only an expiry after the deadline is later than the work", () => {
  const lost = (code: string, reason: string) =>
    errorOf(problem(code, 410, { reason }), null, "release");
  const end = new WorkEnd(2400);
  for (const [code, reason] of [
    ["lease-lost", "expired"],
    ["lease-lost", "session-ended"],
    ["session-ended", "expired"],
    ["session-ended", "blocked"],
  ] as const) {
    assert.ok(end.excuses(lost(code, reason), 2400), `${code} ${reason}`);
    assert.ok(!end.excuses(lost(code, reason), 2399));
    assert.ok(!new WorkEnd(null).excuses(lost(code, reason), 2400));
  }
  for (const reason of ["revoked", "superseded", "released"]) {
    assert.ok(!end.excuses(lost("lease-lost", reason), 9000), reason);
  }
  assert.ok(!end.excuses(lost("session-ended", "ended"), 9000));
  // A retry finds what its first attempt left, and the server may have forgotten it.
  const retried = (code: string, reason: string) =>
    errorOf(problem(code, 410, { reason }), null, "release", { outcome: "unknown" });
  for (const [code, reason] of [
    ["lease-lost", "expired"],
    ["lease-lost", "superseded"],
    ["session-ended", "expired"],
    ["session-unknown", ""],
  ] as const) {
    assert.ok(end.excuses(retried(code, reason), 0), `${code} ${reason}`);
    assert.ok(!new WorkEnd(null).excuses(retried(code, reason), 0));
  }
  assert.ok(!end.excuses(retried("lease-lost", "revoked"), 9000));
});

test("errors say what to do", () => {
  const of = (code: string, status: number, more = {}) =>
    errorOf(problem(code, status, more), 3000, "acquire a");
  const held = of("lock-held", 423, { retryable: true, holder: { owner: "x", token: 3 } });
  assert.ok(held instanceof ContendedError && held.retryable && held.holder?.token === 3);
  assert.equal(held.retryAfterMs, 3000);
  const stale = of("token-collision", 409, { mark: 34 });
  assert.ok(stale.stale && !stale.retryable && stale.minToken === 34);
  const ended = of("session-unknown", 404);
  assert.ok(ended instanceof LeaseLostError && ended.lost && ended.ended === "session-ended");
  assert.deepEqual(
    (
      [
        ["new-code", 503],
        ["new-code", 410],
        ["new-code", 418],
        ["new-code", 500],
      ] as const
    ).map(([code, status]) => of(code, status).kind),
    ["unavailable", "lease-lost", "invalid", "internal"],
  );
  const page = parseProblem(502, Buffer.from("<html>Bad gateway"), "http://a");
  const error = errorOf(page, null, "acquire a");
  assert.ok(error.kind === "unavailable" && error.message.includes("http://a replied 502"));
  assert.ok(error.message.includes("<html>Bad gateway") && error.message.includes("Check that"));
});

const HEADER =
  '34;lock="orders/42";lease="67e55044-10b1-426f-9247-bb680e5fe0c8";ns="default";kid="k1";' +
  "sig=:63KWHbk9003A2IQtZUzMtxBUCkkRmpjYdlJ5w4lhkG8=:";
const CREDENTIAL =
  "fc1_MzQ7bG9jaz0ib3JkZXJzLzQyIjtsZWFzZT0iNjdlNTUwNDQtMTBiMS00MjZmLTkyNDctYmI2ODBlNWZlMGM4Ij" +
  "tucz0iZGVmYXVsdCI7a2lkPSJrMSI7c2lnPTo2M0tXSGJrOTAwM0EySVF0WlV6TXR4QlVDa2tSbXBqWWRsSjV3NGxo" +
  "a0c4PTo";
const OTHER = '7;lock="jobs:nightly";lease="67e55044-10b1-426f-9247-bb680e5fe0c8";ns="default"';

test("tokens are read as a guard reads them, and written in one form", () => {
  const parsed = parseFencingToken(HEADER);
  assert.deepEqual([parsed.token, parsed.lock, parsed.namespace], [34, "orders/42", "default"]);
  assert.equal(formatFencingToken(parsed), HEADER);
  const loose = parseFencingToken(` 34; lease="${parsed.lease}"; lock="orders/42"`);
  assert.deepEqual([loose.token, loose.signature], [34, null]);
  assert.equal(joinCredentials([HEADER]), CREDENTIAL);
  assert.equal(parseCredential(joinCredentials([HEADER, OTHER])).length, 2);
  assert.throws(() => joinCredentials([HEADER, HEADER]), InvalidError);
  const rest = HEADER.slice(2);
  for (const bad of [
    ...["0", "-1", "1000000000000000", "34.0", '"34"'].map((number) => number + rest),
    '34;lock="orders/42"',
    HEADER.replace(/;sig=.*/, ""),
    HEADER.replace(/sig=.*/, "sig=:AAAA:"),
    HEADER.replace(/lease="[^"]*"/, 'lease="abc"'),
    `${HEADER};x=1`,
    `${HEADER};lock="a"`,
    HEADER.replace('"orders/42"', "orders/42"),
    HEADER.replace("orders/42", "orders/../42"),
    `${HEADER} ;ns="a"`,
  ]) {
    assert.throws(() => parseFencingToken(bad), InvalidError, bad);
  }
  for (const bad of [
    "hunter2",
    "fc1_Nztsb2Nr",
    `${CREDENTIAL}=`,
    `${CREDENTIAL}.`,
    CREDENTIAL + "x",
  ]) {
    const error = refusal(() => parseCredential(bad));
    assert.ok(error instanceof InvalidError && !error.message.includes("hunter2"), bad);
  }
});

function refusal(call: () => unknown): unknown {
  try {
    return call();
  } catch (error) {
    return error;
  }
}

test("events are the same in chunks of any size, and nonsense is an error", () => {
  const stream = Buffer.from(
    'retry: 1000\nid: 7-0\nevent: ready\ndata: {"kind":"ready"}\n\n: keep-alive\n\n' +
      'id: 7-1\r\ndata: {"kind":"granted","owner":"ö"}\r\n\r\n' +
      'event: gap\ndata: {"kind":\ndata: "gap"}\n\nid: 7-2\n',
  );
  for (let size = 1; size < stream.length; size += 1) {
    const parser = new EventParser();
    const seen = [];
    for (let at = 0; at < stream.length; at += size) {
      seen.push(...parser.push(stream.subarray(at, at + size)));
    }
    const ids = seen.map(({ id, event }) => [id, event.kind]);
    assert.deepEqual(ids, [
      ["7-0", "ready"],
      ["7-1", "granted"],
      [null, "gap"],
    ]);
  }
  const fed = (text: string | Buffer) => () => new EventParser().push(Buffer.from(text as string));
  assert.throws(fed("data: nonsense\n\n"), /no valid event/);
  assert.throws(fed("x".repeat(70_000)), /more than 65536/);
  assert.throws(fed("data: aaaa\n".repeat(20_000)), /more than 65536/);
  assert.throws(fed(Buffer.from([0xff, 0xff])), TypeError);
});

test("each term of an election is seen once, in any order of events", () => {
  const office = new Office("a");
  const event = (kind: string, token: number) =>
    office.apply({ kind, lock: "a", token, owner: "o", lease_id: "l" });
  assert.ok(office.update(4) && !office.update(4));
  assert.equal(event("granted", 4), "nothing");
  assert.equal(event("released", 3), "nothing");
  assert.equal(event("granted", 5), "elected");
  assert.equal(event("superseded", 4), "nothing");
  assert.equal(event("expired", 5), "vacant");
  assert.equal(event("granted", 5), "nothing");
  assert.equal(office.apply({ kind: "gap" }), "incomplete");
  const patience = new Patience(10_000);
  assert.ok(patience.pauseAfter("unavailable", 0, 1) !== null);
  assert.ok(patience.pauseAfter("contended", 10_000, 1) !== null);
  assert.ok(patience.pauseAfter("unavailable", 10_001, 1) !== null);
  assert.equal(patience.pauseAfter("outcome-unknown", 20_001, 1), null);
  assert.equal(patience.pauseAfter("invalid", 0, 1), null);
});

test("what could never be granted is refused before anything is sent", async () => {
  // Nothing listens there: a request would fail as unavailable.
  const made = client({ server: "http://127.0.0.1:1", guard: "http://127.0.0.1:1" });
  const calls: ((client: Client) => Promise<unknown>)[] = [
    ...["", "/a", "a/", "a//b", "a/../b", ".", "a b", "ä", "a\n", "a?b", "a".repeat(257)].map(
      (name) => (to: Client) => to.lock(name),
    ),
    ...[0, -1, 1.5, NaN, 86_400_001].map((ttlMs) => (to: Client) => to.lock("a", { ttlMs })),
    (to) => to.lock("a", { waitMs: -1 }),
    (to) => to.lock("a", { mode: "permit" }),
    (to) => to.lock("a", { mode: "permit", size: 1025 }),
    (to) => to.lock("a", { size: 2 }),
    (to) => to.lock("a", { minToken: 1e15 }),
    (to) => to.lock("a", { metadata: "x".repeat(4096) }),
    (to) => to.lock("a", { metadata: 1n }),
    (to) => to.lock("a", { takeover: true }),
    (to) => to.lock("a", { maxHoldMs: 0 }),
    (to) => to.lock("a", { maxHoldMs: 5, warnBeforeMs: 5 }),
    (to) => to.session({ ttlMs: 0 }),
    (to) => to.lockAll([]),
    (to) => to.lockAll(["a", "a"]),
    (to) => to.locks.revoke("a", ""),
    (to) => to.locks.show("a b"),
  ];
  for (const call of calls) {
    const error = await call(made).catch((why: unknown) => why);
    assert.ok(error instanceof InvalidError, `${call}: ${error}`);
  }
});

test("addresses are checked where they are given", () => {
  assert.deepEqual(parseServerUrl("https://[::1]:7420/x/", false), {
    base: "https://[::1]:7420/x",
    isHttps: true,
    host: "::1",
    port: 7420,
    path: "/x",
  });
  parseServerUrl("http://localhost:1", false);
  parseServerUrl("http://fence.example", true);
  for (const bad of [
    "",
    "127.0.0.1:7420",
    "redis://a",
    "http://u:hunter2@a",
    "http://a?b",
    "http://a:70000",
  ]) {
    const error = refusal(() => parseServerUrl(bad, true));
    assert.ok(error instanceof InvalidError && !error.message.includes("hunter2"), bad);
  }
  for (const plain of ["http://fence.example", "http://10.0.0.1", "http://127.0.0.1.example"]) {
    assert.throws(() => parseServerUrl(plain, false), /plain HTTP to another machine/);
  }
});

const LINES = [
  "# ours",
  "log = 'debug'",
  'owner = "of the file" # for people',
  "guard = 'http://[::1]:3'",
  "insecure_http = true",
];

test("settings come from options, variables and the file, in this order", () => {
  const config = file("fence.toml", LINES.join("\n"));
  const env = { FENCE_CONFIG: config, FENCE_SERVER: "http://127.0.0.1:2", FENCE_OWNER: "" };
  assert.equal(client({ env }).owner, "of the file");
  assert.equal(client({ env: { ...env, FENCE_OWNER: "of a variable" } }).owner, "of a variable");
  assert.equal(client({ env, owner: "given" }).owner, "given");
  const twin = { FENCE_OWNER_FILE: file("owner", " of a file\n") };
  assert.equal(client({ env: twin }).owner, "of a file");
  for (const [bad, why] of [
    [{ FENCE_CONFIG: file("bad.toml", "owner = 'x'\ntll = '15s'\n") }, /line 2: unknown key tll/],
    [{ FENCE_CONFIG: file("odd.toml", "owner: x\n") }, /line 1: is not of the form/],
    [{ FENCE_INSECURE_HTTP: "yes" }, /must be true or false/],
    [{ FENCE_SERVER: "http://fence.example" }, /plain HTTP/],
    [{ FENCE_AUTH_FILE: "/nowhere/token" }, /auth-file: the file .nowhere.token cannot be read/],
    [{ FENCE_AUTH_FILE: file("token", "two words") }, /one word/],
    [{ FENCE_CLIENT_CERT: file("cert", "x") }, /belong together/],
    [{ FENCE_CA_FILE: file("ca", "no pem") }, /no PEM/],
    [{ ...twin, FENCE_OWNER: "x" }, /both set/],
  ] as const) {
    assert.throws(() => client({ env: bad }), why);
  }
});
