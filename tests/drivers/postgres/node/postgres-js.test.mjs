// postgres.js, which is a pool, at the PostgreSQL port, over a hand-over: an instance for each lease.
//
// GUARD_PORT is the port, TOKENS are credentials of one lock with rising tokens.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, test } from "node:test";
import { pipeline } from "node:stream/promises";
import { Readable } from "node:stream";
import postgres from "postgres";

const SIZE = 8;
const [first, second, third] = process.env.TOKENS.split(" ");
const settings = { host: "127.0.0.1", port: Number(process.env.GUARD_PORT), database: "shop", user: "app" };
// Of a session that was ended, or of the refused login after it. With more statements postgres.js
// would log in without end.
const hasEnded = ({ code }) => code === "CONNECTION_CLOSED" || code === "FE412";
const opened = [];
after(() => Promise.allSettled(opened.map((sql) => sql.end({ timeout: 0 }))));

function open(password) {
  const sql = postgres({ ...settings, password, max: SIZE });
  opened.push(sql);
  return sql;
}

test("transactions, prepared statements, COPY and large rows", async () => {
  const sql = open(first);
  await sql`CREATE TABLE journal (id serial, body text)`;
  const undone = sql.begin(async (transaction) => {
    await transaction`INSERT INTO journal (body) VALUES ('undone')`;
    await transaction`SELECT 1/0`;
  });
  await assert.rejects(undone, { code: "22012" });
  await sql.begin((transaction) => transaction`INSERT INTO journal (body) VALUES ('done')`);
  const numbers = Array.from({ length: 100 }, (_, number) => number);
  const found = await Promise.all(numbers.map((number) => sql`SELECT ${number}::int AS number`));
  assert.deepEqual(found.map(([row]) => row.number), numbers);
  const lines = numbers.map((number) => `${number + 100}\tcopied\n`);
  await pipeline(Readable.from(lines), await sql`COPY journal FROM STDIN`.writable());
  const copied = await sql`COPY journal TO STDOUT`.readable();
  const pieces = [];
  copied.on("data", (piece) => pieces.push(piece));
  await once(copied, "end");
  assert.equal(Buffer.concat(pieces).toString().split("\n").length, 102);
  const [{ text }] = await sql`SELECT repeat('z', 9000000) AS text`;
  assert.equal(text.length, 9000000);
  await sql`TRUNCATE journal`;
  await sql.end();
});

test("LISTEN and NOTIFY", async () => {
  const sql = open(first);
  let received;
  const payload = new Promise((resolve) => (received = resolve));
  await sql.listen("news", received);
  await sql.notify("news", "hello");
  assert.equal(await payload, "hello");
  await sql.end();
});

test("no write of the old lease lands behind the first of the next one", async () => {
  const insert = (sql, body) => sql`INSERT INTO journal (body) VALUES (${body})`;
  const atOnce = async (sql, body) => {
    const writes = Array.from({ length: 2 * SIZE }, () => insert(sql, body));
    return new Set((await Promise.allSettled(writes)).map(({ reason }) => reason?.code ?? "written"));
  };
  const [mine, other, again] = [open(first), open(second), open(third)];
  assert.deepEqual(await atOnce(mine, "first"), new Set(["written"]));
  await insert(other, "other");
  await assert.rejects(insert(mine, "late"), hasEnded);
  await mine.end({ timeout: 0 });
  assert.deepEqual(await atOnce(mine, "late"), new Set(["CONNECTION_ENDED"]));
  await assert.rejects(insert(open(first), "late"), { code: "FE412" });
  assert.deepEqual(await atOnce(again, "next"), new Set(["written"]));
  await assert.rejects(insert(other, "late"), hasEnded);
  const rows = await again`SELECT body FROM journal ORDER BY id`;
  const written = ["first", "next"].map((body) => Array(2 * SIZE).fill(body));
  assert.deepEqual(rows.map(({ body }) => body), [...written[0], "other", ...written[1]]);
});
