/** An object is absent only where a guard says so: over real servers, and the fake one. */
import assert from "node:assert/strict";
import { once } from "node:events";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { FakeServer } from "../src/testing.js";
import { client, guard, lockServer } from "./harness.js";

const LEASE = { ttlMs: 60_000 };

test("a wrong guard URL is an error, not an object that does not exist", async (t) => {
  const server = await lockServer();
  const right = await guard();
  const fake = await FakeServer.start();
  t.after(() => fake.stop());
  const cases: [server: string, guard: string, wrong: string][] = [
    [server, right, server],
    [server, right, `${right}/more`],
    [fake.url, fake.url, `${fake.url}/more`],
  ];
  for (const [at, guarding, wrong] of cases) {
    const lease = await client({ server: at, guard: guarding }).lock("guard-url", LEASE);
    const there = client({ server: at, guard: guarding });
    assert.equal(await there.objects.get(lease, "guard-url"), null);
    const { objects } = client({ server: at, guard: wrong });
    const get = () => objects.get(lease, "guard-url");
    const put = () => objects.put(lease, "guard-url", "1");
    for (const call of [get, put]) {
      await assert.rejects(call(), (error: Error & { code?: string; kind?: string }) => {
        assert.ok(error.message.includes(`${wrong} answers, but not as a guard: `), error.message);
        assert.match(error.message, /Check the guard's URL/);
        assert.deepEqual([error.kind, error.code], ["invalid", "not-found"]);
        return true;
      });
    }
    await lease.release();
  }
});

test("a success without the headers of an object is no object", async () => {
  const server = await lockServer();
  const right = await guard();
  const lease = await client({ server, guard: right }).lock("guard-url", LEASE);
  // There, a guard describes the fence of a lock.
  const { objects } = client({ server, guard: `${right}/v1/fences` });
  await assert.rejects(objects.get(lease, "guard-url"), {
    kind: "internal",
    message: /no header ETag/,
  });
  await lease.release();
});

test("another status with the code not-found does not say that an object is absent", async (t) => {
  const server = await lockServer();
  const lease = await client({ server }).lock("guard-url", LEASE);
  const other = http.createServer((_, response) => {
    response.writeHead(503, { "fencing-guarantee": "atomic" });
    response.end('{"code":"not-found","detail":"not ready"}');
  });
  other.listen(0, "127.0.0.1");
  t.after(() => other.close());
  await once(other, "listening");
  const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
  const { objects } = client({ server, guard: url });
  await assert.rejects(objects.get(lease, "guard-url"), { status: 503, code: "not-found" });
  await lease.release();
});
