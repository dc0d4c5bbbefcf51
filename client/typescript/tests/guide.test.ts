/** The programs of the guide and of the README, which `check` runs with the tarball. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { before, test } from "node:test";
import { promisify } from "node:util";
import { guard, lockServer, redisGuard, redisServer } from "./harness.js";

const folder = process.env["FENCE_GUIDE"] ?? assert.fail("run client/typescript/check");
let env: NodeJS.ProcessEnv;

before(async () => {
  const store = await redisServer();
  const [server, storage, port] = await Promise.all([lockServer(), guard(), redisGuard(store)]);
  env = { ...process.env, FENCE_SERVER: server, FENCE_GUARD: storage, REDIS_PORT: String(port) };
  // The output of a test of the guide is for people.
  delete env["NODE_TEST_CONTEXT"];
});

async function output(program: string): Promise<string> {
  const { stdout } = await promisify(execFile)(process.execPath, [program], { cwd: folder, env });
  return stdout;
}

test("the programs of the guide run from zero to a refused stale write", async () => {
  assert.equal(await output("total.mjs"), "total 1\n");
  assert.equal(await output("total.mjs"), "total 2\n");
  assert.equal(await output("stale.mjs"), "true\n412 stale-token\n");
  assert.equal(await output("redis.mjs"), "1\n");
  assert.equal(await output("first.mjs"), "");
  assert.match(await output("order.test.mjs"), /\bpass 1$/m);
});
