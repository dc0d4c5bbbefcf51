// node-postgres and its pool at the PostgreSQL port, over a hand-over.
//
// GUARD_PORT is the port, TOKENS are credentials of one lock with rising tokens.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, test } from "node:test";
import { pipeline } from "node:stream/promises";
import { Readable, Writable } from "node:stream";
import pg from "pg";
import { from, to } from "pg-copy-streams";

const [first, second, third] = process.env.TOKENS.split(" ");
const settings = { host: "127.0.0.1", port: Number(process.env.GUARD_PORT), database: "shop", user: "app" };
const opened = [];
after(() => Promise.allSettled(opened.map((made) => made.end())));

async function connect(password) {
  const client = new pg.Client({ ...settings, password });
  client.on("error", () => {});
  await client.connect();
  opened.push(client);
  return client;
}

test("transactions, prepared statements and large rows", async () => {
  const client = await connect(first);
  await client.query("CREATE TABLE n (id int PRIMARY KEY, body text)");
  await client.query("BEGIN");
  await client.query("INSERT INTO n VALUES ($1, $2)", [1, "one"]);
  await client.query("ROLLBACK");
  for (let id = 0; id < 20; id += 1) {
    await client.query({ name: "insert", text: "INSERT INTO n VALUES ($1, 'x')", values: [id] });
  }
  const { rows } = await client.query("SELECT count(*)::int AS count, length(repeat('y', 9000000)) AS long FROM n");
  assert.deepEqual(rows, [{ count: 20, long: 9000000 }]);
  const large = await client.query("SELECT repeat('z', 9000000) AS text");
  assert.equal(large.rows[0].text.length, 9000000);
  await assert.rejects(client.query("SELECT 1/0"), { code: "22012" });
});

test("COPY both ways", async () => {
  const client = await connect(first);
  const lines = Array.from({ length: 20000 }, (_, line) => `${line + 100}\t${"w".repeat(100)}\n`);
  await pipeline(Readable.from(lines), client.query(from("COPY n FROM STDIN")));
  let size = 0;
  const count = new Writable({
    write(piece, _, done) {
      size += piece.length;
      done();
    },
  });
  await pipeline(client.query(to("COPY n TO STDOUT")), count);
  assert.ok(size > 2000000, String(size));
});

test("LISTEN and NOTIFY", async () => {
  const listener = await connect(first);
  await listener.query("LISTEN news");
  const heard = once(listener, "notification");
  await (await connect(first)).query("NOTIFY news, 'hello'");
  assert.equal((await heard)[0].payload, "hello");
});

test("a token in the options", async () => {
  const client = new pg.Client({ ...settings, password: "", options: `-c fence.token=${first}` });
  client.on("error", () => {});
  await client.connect();
  opened.push(client);
  assert.equal((await client.query("SELECT current_user AS me")).rows[0].me, "writer");
});

test("a stale session, and a pool whose password follows the lease", async () => {
  const stale = await connect(first);
  await stale.query("BEGIN");
  await stale.query("INSERT INTO n VALUES (-1, 'stale')");
  let lease = second;
  const pool = new pg.Pool({ ...settings, password: () => lease, max: 4 });
  pool.on("error", () => {});
  opened.push(pool);
  const insert = (id) => pool.query("INSERT INTO n VALUES ($1, 'pool')", [id]);
  await Promise.all(Array.from({ length: 16 }, (_, at) => insert(1000000 + at)));
  await assert.rejects(stale.query("COMMIT"));
  await assert.rejects(connect(first), { code: "FE412" });
  const counted = await pool.query("SELECT count(*)::int AS count FROM n WHERE id = -1");
  assert.equal(counted.rows[0].count, 0);
  await connect(third);
  await assert.rejects(insert(2000000));
  lease = third;
  // Connections that were fenced leave the pool as they fail.
  for (let at = 0; at < 8; at += 1) await insert(3000000 + at).catch(() => {});
  await insert(4000000);
});
