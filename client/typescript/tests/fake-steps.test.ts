/** The fake server replies to each request of `tests/sdk/fake-steps.json` as the real ones do. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { FakeServer } from "../src/testing.js";
import { guard, lockServer, PATIENCE_MS, until } from "./harness.js";

interface FakeStep {
  name: string;
  /** Method and path. */
  send: string;
  body?: object;
  text?: string;
  headers?: Record<string, string>;
  /** Name under which later headers have the token of the reply. */
  keep?: string;
  /** Lock that has a waiter once this request waits; its reply comes later. */
  waits?: string;
  /** The request is for the guard, whatever its path. */
  guard?: boolean;
}

const file = `${process.env["FENCE_REPOSITORY"]}/tests/sdk/fake-steps.json`;
const text = readFileSync(file, "utf8").replace(/"\$(\d+)"/g, (_, id: string) => {
  return `"00000000-0000-4000-8000-${id.padStart(12, "0")}"`;
});
const { steps } = JSON.parse(text) as { steps: FakeStep[] };

/** The compared parts of a reply, in a line. */
async function shown(name: string, reply: Response): Promise<string> {
  const body = await reply.text();
  const { headers, status } = reply;
  const isJson = headers.get("content-type")?.includes("json");
  const members = (isJson ? JSON.parse(body) : {}) as Record<string, unknown>;
  const { code, outcome, why, reason, queue_length, etag } = members;
  const problem = code
    ? { lock: members["lock"], owner: members["owner"] }
    : { body: !isJson && body };
  const all = {
    code,
    outcome,
    why,
    reason,
    queue_length,
    ...problem,
    etag: etag === undefined ? undefined : etag !== null,
    holder: (members["holder"] as { owner: string } | undefined)?.owner,
    guarantee: headers.get("fencing-guarantee"),
    isMarked: headers.has("fencing-mark"),
    isTagged: headers.has("etag"),
    replayed: headers.get("idempotency-replayed"),
  };
  return `${name}: ${status} ${JSON.stringify(all)}`;
}

async function play(server: string, guarding: string): Promise<string[]> {
  const kept = new Map<string, string>();
  const replies: Promise<string>[] = [];
  for (const { name, send, body, text, headers = {}, keep, waits, guard } of steps) {
    const [method = "", path = ""] = send.split(" ");
    const isOfGuard = guard || /^\/v1\/(objects|fences)\//.test(path);
    const sent = new Headers(headers);
    if (body) sent.set("content-type", "application/json");
    const token = kept.get(sent.get("fencing-token")?.slice(1) ?? "");
    if (token !== undefined) sent.set("fencing-token", token);
    const reply = fetch(`${isOfGuard ? guarding : server}${path}`, {
      method,
      headers: sent,
      body: body ? JSON.stringify(body) : (text ?? null),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (waits) {
      await until(`${name}, in the queue`, async () => {
        const state = await fetch(`${server}/v1/locks/${waits}`);
        return ((await state.json()) as { queue_length: number }).queue_length === 1;
      });
    } else if (keep) {
      const { fencing_token } = (await (await reply).clone().json()) as { fencing_token: string };
      kept.set(keep, fencing_token);
    }
    const line = reply
      .then((one) => shown(name, one))
      .catch((error: unknown) => `${name}: ${error}`);
    if (!waits) await line;
    replies.push(line);
  }
  return Promise.all(replies);
}

test("the fake server replies as the real servers do", async (t) => {
  const fake = await FakeServer.start();
  t.after(() => fake.stop());
  const real = await play(await lockServer(), await guard());
  const replies = await play(fake.url, fake.url);
  const isOther = (_: string, at: number) => replies[at] !== real[at];
  assert.deepEqual(replies.filter(isOther), real.filter(isOther));
});
