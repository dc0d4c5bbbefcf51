/** The page of conveniences names what the package has. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import * as api from "../src/index.js";
import { SESSION_LOCK_OPTIONS, SESSION_OPTIONS } from "../src/lock-spec.js";
import * as testing from "../src/testing.js";

const repository = process.env["FENCE_REPOSITORY"] ?? assert.fail("run client/typescript/check");
const NO_NAMES = new Set(["await", "using", "Infinity"]);

/** The members of an object, and of its classes. */
function members(object: object): string[] {
  const found = [];
  for (let each = object; each !== Object.prototype; each = Object.getPrototypeOf(each)) {
    found.push(...Object.getOwnPropertyNames(each));
  }
  return found;
}

test("the page of conveniences names what is here", async () => {
  const page = readFileSync(join(repository, "docs/reference/conveniences.md"), "utf8");
  const [here = ""] = page.split("\n## There\n");
  const rows = here.split("\n").filter((line) => line.startsWith("| "));
  const [head = [], , ...cells] = rows.map((row) => row.split("|").map((cell) => cell.trim()));
  const column = cells.map((row) => row[head.indexOf("TypeScript")]).join();
  const texts = [...column.matchAll(/`([^`]+)`/g)].map(([, text = ""]) => text);
  const words = texts.flatMap((text) => text.replace(/"[^"]*"/g, "").match(/\b[a-z]\w*/gi) ?? []);
  assert.ok(words.length > 20);

  await using fake = await testing.FakeServer.start();
  const client = fake.client();
  await using lease = await client.lock("a");
  const names = new Set(
    [client, client.locks, lease, SESSION_LOCK_OPTIONS, SESSION_OPTIONS].flatMap(members),
  );
  for (const name of [...Object.keys(api), ...Object.keys(testing)]) names.add(name);
  assert.deepEqual(
    words.filter((word) => !names.has(word) && !NO_NAMES.has(word)),
    [],
  );
});
