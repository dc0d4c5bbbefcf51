/** No public object shows a credential when it is printed. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { inspect } from "node:util";
import * as api from "../src/index.js";
import { LeaseConnections } from "../src/redis.js";
import { client, fence, file, guard, lockServer } from "./harness.js";

const SECRET_NAME = "representations.secret";

/** Every way in which a program prints a value. */
function shown(value: object): string[] {
  return [inspect(value), inspect({ value }, { depth: 20 }), String(value), JSON.stringify(value)];
}

async function failure(call: Promise<unknown>): Promise<object> {
  const error = await call.then(
    () => null,
    (why: unknown) => why as object,
  );
  return error ?? assert.fail("the call succeeded");
}

test("no representation of a public object has a credential", async () => {
  const authFile = `${file(SECRET_NAME, "")}.1`;
  const rights = ["--allow", "use *", "--allow", "read *", "--allow", "revoke *"];
  const entry = fence("auth", "new", "tests", ...rights, "--secret-file", authFile);
  const access = ["--access-file", file("representations.toml", entry)];
  const [server, storage] = await Promise.all([lockServer(...access), guard(...access)]);
  const made = client({ server, guard: storage, authFile });
  const lease = await made.lock("r/1", { ttlMs: 60_000 });
  const session = await made.session({ ttlMs: 60_000 });
  const ofSession = await session.lock("r/2");
  const set = await session.lockAll(["r/3"]);
  const held = await made.lockAll(["r/4"], { ttlMs: 60_000 });
  const stream = await made.events({ prefix: "r/" });
  const connections = new LeaseConnections({ open: (): object => ({}), close() {}, isRefusal });
  await connections.use(lease);
  const written = await made.objects.put(lease, "r/1", "x");
  const parsed = api.parseFencingToken(lease.fencingToken);
  const values: object[] = [
    ...[made, made.locks, made.sessions, made.objects, lease, lease.grant, session, ofSession],
    ...[ofSession.grant, set, held, held.leases, stream, connections, written, parsed],
    ...[api.parseCredential(lease.fencingCredential), made.election("r"), made.reentrant("r")],
    ...[new api.Window(1, 2), (await made.objects.get(lease, "r/1")) ?? {}],
    ...[
      await made.locks.show("r/1"),
      await made.locks.list(),
      await made.sessions.show(session.id),
    ],
    ...(await Promise.all([
      failure(made.lock("r/1")),
      failure(made.objects.put(lease, "other", "x")),
      failure(made.objects.put(lease, "r/1", "x", { ifAbsent: true })),
      failure(made.lock("a b")),
      failure(
        made.objects.put({ ...fenceOf(lease), fencingToken: `${lease.fencingToken}x` }, "r/1", "x"),
      ),
      failure(client({ server, token: "hunter2" }).lock("r/1")),
      failure(client({ server: "http://127.0.0.1:1", authFile }).lock("a", { patienceMs: 1 })),
    ])),
  ];
  await made.locks.revoke("r/1", "by the test");
  const next = await made.lock("r/1", { ttlMs: 60_000 });
  await made.objects.put(next, "r/1", "y");
  values.push(await failure(made.objects.put(lease, "r/1", "late")));
  values.push(await failure(lease.release()), lease);
  const mac = parsed.signature?.mac ?? assert.fail("the token is signed");
  const secret = readFileSync(authFile, "utf8").trim();
  const credential = new RegExp(`fc1_|sig=|Bearer|hunter2|${secret}|${escaped(mac)}`);
  for (const value of values) {
    for (const text of shown(value)) assert.doesNotMatch(text ?? "", credential);
  }
  assert.equal(api.formatFencingToken(parsed), lease.fencingToken);
  assert.equal(lease.grant.fencing_credential, lease.fencingCredential);
  // Each class of the package is among them; errors have one shape.
  for (const [name, one] of Object.entries(api)) {
    const isClass = typeof one === "function" && /^class /.test(String(one));
    if (!isClass || /Error$/.test(name)) continue;
    assert.ok(
      values.some((value) => value instanceof (one as never)),
      `${name} was not printed`,
    );
  }
  stream.close();
  await Promise.all([next.release(), session.end(), held.release()]);
});

function isRefusal(): boolean {
  return false;
}

function fenceOf({ lock, token, fencingToken, fencingCredential, signal, ended }: api.Lease) {
  return { lock, token, fencingToken, fencingCredential, signal, ended, check() {} };
}

function escaped(text: string): string {
  return text.replace(/[+/=]/g, "[+/=]");
}
