/** Errors of real servers, and every code of theirs, in the words of this package. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { inspect } from "node:util";
import { ContendedError, type FencepostError, InvalidError } from "../src/index.js";
import { errorOf } from "../src/problem.js";
import { Failure } from "../src/transport.js";
import { client, fence, file, lockServer } from "./harness.js";

const OF_HTTP = new RegExp(
  "_ms|_id|_of|_token|\\bheader|Authorization|Bearer|Retry-After|Idempotency|content-type|" +
    "Allow|\\b0 wait",
);

async function failure(call: Promise<unknown>): Promise<FencepostError> {
  const error = await call.then(
    () => null,
    (why: unknown) => why as FencepostError,
  );
  return error ?? assert.fail("the call succeeded");
}

function assertPlain(error: FencepostError): void {
  const { message, detail, hint } = error;
  const printed = inspect(error).replace(/^ +at .*$/gm, "");
  for (const text of [message, detail, hint, printed]) assert.doesNotMatch(text ?? "", OF_HTTP);
}

test("a lock that is held says how long was waited, and what to do", async () => {
  const direct = client({ server: await lockServer(), owner: "alice" });
  const lease = await direct.lock("words", { ttlMs: 60_000 });
  const atOnce = await failure(direct.lock("words"));
  assert.match(atOnce.message, /^acquire words: lock words is held by alice with token \d+ /);
  assert.match(atOnce.message, /ms unless it is renewed \(Wait in the queue with waitMs\.\)$/);
  assert.ok(atOnce instanceof ContendedError && atOnce.waitedMs === 0);
  const waited = await failure(direct.lock("words", { waitMs: 50 }));
  assert.match(waited.message, /renewed; waited \d+ ms \(Wait for longer with waitMs\.\)$/);
  assert.equal(waited.hint, "Wait for longer with waitMs.");
  assert.ok(waited instanceof ContendedError && waited.waitedMs >= 50);
  assert.match(String(waited.problem?.hint), /Retry-After/, "the problem is the server's");
  const all = await failure(direct.lockAll(["words/2", "words"], { waitMs: 50 }));
  assert.match(all.message, /^acquire words \(one of words\/2, words\): .*; waited \d+ ms/);
  for (const error of [atOnce, waited, all]) assertPlain(error);
  await lease.release();
});

test("a caller without a token is asked for it by the name of the option", async () => {
  const secret = file("words.secret", "");
  const entry = fence("auth", "new", "tests", "--allow", "use a/*", "--secret-file", `${secret}1`);
  const server = await lockServer("--access-file", file("words.toml", entry));
  const refused = await failure(client({ server }).lock("a/1"));
  assert.ok(refused instanceof InvalidError && refused.code === "unauthorized");
  assert.match(refused.message, /Give a token of the server's access file: token, or authFile/);
  assertPlain(refused);
});

test("no error names a header or a field", () => {
  const page = readFileSync(`${process.env["FENCE_REPOSITORY"]}/docs/reference/errors.md`, "utf8");
  const codes = [...page.matchAll(/^- `([a-z-]+)` \((\d+)\): (.+)$/gm)];
  assert.ok(codes.length > 30, `${codes.length} codes`);
  const detail =
    "takeover_of and min_token, ttl_ms 5, wait_ms 6 of lease_id 7, session_id 8; the request has " +
    "more than one Fencing-Token header; the Authorization header is not ASCII text; 0 wait";
  for (const [, code = "", status, hint = ""] of codes) {
    const problem = { code, status: Number(status), detail, hint };
    assertPlain(errorOf(problem, null, "a call"));
    // As logs and errors of retries repeat it.
    assert.doesNotMatch(Failure.refused(problem, null).reason, OF_HTTP);
  }
  const own = { code: "lock-held", status: 423, detail: "x; 2 wait", hint: "Look at the console." };
  const { message } = errorOf(own, null, "a call");
  assert.equal(message, "a call: x; 2 other requests wait (Look at the console.)");
});
