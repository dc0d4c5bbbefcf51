/** The worker of docs/guides/jobs.md: an attempt that was paused past its lease writes nothing. */
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { Client } from "../src/index.js";
import { guard, lockServer, redisServer, start } from "./harness.js";

const site = process.env["FENCE_GUIDE"] ?? assert.fail("run client/typescript/check");
const repository = process.env["FENCE_REPOSITORY"] ?? assert.fail("run client/typescript/check");

/** The work: the first attempt pauses its process, as a suspended machine does. */
const SHOP = `
export async function bill() {
  const who = process.argv[2];
  if (who === "first") {
    console.log("paused");
    process.kill(process.pid, "SIGSTOP");
  }
  return \`paid by the \${who} attempt\`;
}
`;
const RUN = `
import { worker } from "./worker.mjs";
worker.on("completed", () => console.log("ended: completed"));
worker.on("failed", (job, error) => console.log("ended: " + error.constructor.name));
`;
const ADD = `
import { Queue } from "bullmq";
const queue = new Queue("jobs", { connection: { port: Number(process.env.REDIS_PORT) } });
await queue.add("pay", { order: "42" });
await queue.close();
console.log("added");
`;

test("a paused attempt of a BullMQ job does not write over the next", async () => {
  const [server, storage, port] = await Promise.all([lockServer(), guard(), redisServer()]);
  Object.assign(process.env, { FENCE_SERVER: server, FENCE_GUARD: storage });
  process.env["REDIS_PORT"] = String(port);
  const page = readFileSync(join(repository, "docs/guides/jobs.md"), "utf8");
  const found = /^```js\n(\/\/ worker\.mjs\n[^]*?)^```$/m.exec(page);
  const worker = found?.[1] ?? assert.fail("jobs.md has no worker");
  const folder = join(site, "jobs");
  mkdirSync(folder, { recursive: true });
  const files = { "worker.mjs": worker?.replace("15_000", "3_000"), "shop.mjs": SHOP };
  for (const [name, text] of Object.entries({ ...files, "run.mjs": RUN, "add.mjs": ADD })) {
    writeFileSync(join(folder, name), text ?? "");
  }
  const node = (pattern: RegExp, program: string, ...args: string[]) =>
    start(process.execPath, [join(folder, program), ...args], pattern);

  await node(/(added)/, "add.mjs");
  const first = await node(/(paused)/, "run.mjs", "first");
  await node(/(added)/, "add.mjs");
  const second = await node(/ended: (\w+)/, "run.mjs", "second");
  assert.equal(second.found, "completed");

  const lines = createInterface({ input: first.child.stdout ?? assert.fail() });
  const late = new Promise<string>((resolve) => lines.on("line", resolve));
  first.child.kill("SIGCONT");
  assert.equal(await late, "ended: LeaseLostError");

  const client = new Client({ server, guard: storage });
  await client.withLock("orders/42", {}, async (lease) => {
    const found = await client.objects.get(lease, "orders/42");
    assert.equal(found?.text(), "paid by the second attempt");
  });
});
