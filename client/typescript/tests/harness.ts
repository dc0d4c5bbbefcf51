/** Real servers for the tests, and a proxy that loses replies. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import * as http from "node:http";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ClientOptions, Window } from "../src/index.js";

const PROGRAMS = process.env["FENCE_BIN"] ?? "../../target/debug";
/** Longest wait for a condition: a limit for a broken SDK, not what a busy machine may take. */
export const PATIENCE_MS = 45_000 * patienceFactor();

function patienceFactor(): number {
  const text = process.env["FENCE_TEST_PATIENCE"] ?? "1";
  const factor = Number(text);
  if (factor > 0 && factor <= 1000) return factor;
  throw new Error(`FENCE_TEST_PATIENCE=${text}: expected a number above 0, at most 1000`);
}

/**
 * Renewals and heartbeats follow 0.1 s after the last for the rest of the test, whatever the time
 * to live is: a revocation is noticed at once, and a lease that lasts a minute outlives a stall.
 */
export function renewSoon(test: TestContext): void {
  const { prototype } = Window;
  const own = Object.getOwnPropertyDescriptor(prototype, "renewAt");
  function get(this: Window): number {
    return this.sentAtMs + 100;
  }
  Object.defineProperty(prototype, "renewAt", { ...own, get });
  test.after(() => Object.defineProperty(prototype, "renewAt", { ...own }));
}

const folder = mkdtempSync(join(tmpdir(), "fencepost-"));
const children: ChildProcess[] = [];
const closings: (() => unknown)[] = [];
// A test that hangs is ended by a signal: no server outlives it.
for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => process.exit(1));
process.once("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});
after(async () => {
  for (const close of closings) await close();
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill("SIGKILL");
    await once(child, "exit");
  }
});

/** A folder that is removed after the tests. */
export function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

const keys = file("keys.txt", `k1:${randomBytes(32).toString("hex")}\n`);

/** Starts a program, and returns the part of its output that `pattern` captures. */
export async function start(
  program: string,
  args: string[],
  pattern: RegExp,
): Promise<{ found: string; child: ChildProcess }> {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  children.push(child);
  const { stdout, stderr } = child;
  const lines: string[] = [];
  const found = new Promise<string>((resolve, reject) => {
    for (const input of [stdout, stderr]) {
      createInterface({ input }).on("line", (line) => {
        lines.push(line);
        const [, captured] = pattern.exec(line) ?? [];
        if (captured !== undefined) resolve(captured);
      });
    }
    child.once("error", reject);
    child.once("exit", () => reject(new Error(`${program} has ended:\n${lines.join("\n")}`)));
  });
  return { found: await found, child };
}

const LISTENING = /listening on (https?:\/\/\S+)/;

/** Starts a lock server; returns its address. */
export async function lockServer(...args: string[]): Promise<string> {
  const common = ["--listen", "127.0.0.1:0", "--store", "memory:", "--token-key-file", keys];
  return (await start(join(PROGRAMS, "lock-server"), [...common, ...args], LISTENING)).found;
}

/** Starts a guard; returns its address and that of its Redis port, if it has one. */
export async function guard(...args: string[]): Promise<string> {
  const store = args.includes("--store") ? [] : ["--store", "memory:"];
  const common = ["--listen", "127.0.0.1:0", "--token-key-file", keys, ...store];
  return (await start(join(PROGRAMS, "fenced-store"), [...common, ...args], LISTENING)).found;
}

/** Runs the command line; returns its output. */
export function fence(...args: string[]): string {
  return execFileSync(join(PROGRAMS, "fence"), args, { encoding: "utf8" });
}

/** Starts a guard before a Redis; returns the port of its Redis port. */
export async function redisGuard(store: number): Promise<number> {
  const url = `redis://127.0.0.1:${store}`;
  const args = ["--listen", "127.0.0.1:0", "--token-key-file", keys, "--store", url];
  const listening = /redis port listening on redis:\/\/127\.0\.0\.1:(\d+)/;
  const listen = ["--redis-listen", "127.0.0.1:0"];
  const program = join(PROGRAMS, "fenced-store");
  return Number((await start(program, [...args, ...listen], listening)).found);
}

/** Starts a Redis; returns its port. */
export async function redisServer(): Promise<number> {
  for (let attempt = 1; ; attempt += 1) {
    const port = await freePort();
    const args = ["--port", String(port), "--bind", "127.0.0.1", "--save", ""];
    try {
      await start("redis-server", args, /(Ready to accept connections)/);
      return port;
    } catch (error) {
      // Another program may have taken the port.
      if (attempt === 5) throw error;
    }
  }
}

/** A port that was free a moment ago: redis-server takes no port 0. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** A client with nothing from the environment, and without warnings of the process. */
export function client(options: ClientOptions): Client {
  const made = new Client({ env: {}, log: () => {}, ...options });
  closings.push(() => made.close());
  return made;
}

/** Waits until `condition` holds. */
export async function until(what: string, condition: () => unknown): Promise<void> {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    // Before the look: a pause of the machine after it has shown nothing.
    const isLast = performance.now() > end;
    if (await condition()) return;
    if (isLast) throw new Error(`${what}: not within ${PATIENCE_MS} ms`);
    await sleep(5);
  }
}

/** Waits until a signal is aborted, which it may be already. */
export async function aborted(signal: AbortSignal): Promise<void> {
  await until("the abort", () => signal.aborted);
}

/** Blocks the event loop. */
export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** A request that the proxy received. */
export interface Recorded {
  readonly path: string;
  readonly body: Record<string, unknown>;
}

/** What the proxy does with a request: pass it, lose its reply, hold it or its reply. */
export type Fault = "pass" | "drop-reply" | "hold" | "hold-reply";

/** A proxy before a server. */
export class Proxy {
  readonly requests: Recorded[] = [];
  /** Decides about each request. */
  fault: (request: Recorded) => Fault = () => "pass";
  url = "";
  /** The reply to every request, as of another program. */
  page: string | undefined;
  readonly #target: URL;
  readonly #server = http.createServer((request, response) => void this.#serve(request, response));

  private constructor(target: string) {
    this.#target = new URL(target);
  }

  static async before(target: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    proxy.url = `http://127.0.0.1:${(proxy.#server.address() as AddressInfo).port}`;
    closings.push(() => {
      proxy.#server.closeAllConnections();
      proxy.#server.close();
    });
    return proxy;
  }

  /** Breaks all connections. */
  disconnect(): void {
    this.#server.closeAllConnections();
  }

  /** Requests whose path ends so. */
  of(end: string): Recorded[] {
    return this.requests.filter(({ path }) => path.endsWith(end));
  }

  async #serve(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const sent = Buffer.concat(chunks);
    const isJson = request.headers["content-type"] === "application/json";
    const body = isJson ? (JSON.parse(sent.toString()) as Recorded["body"]) : {};
    const recorded = { path: request.url ?? "", body };
    const fault = this.fault(recorded);
    this.requests.push(recorded);
    if (this.page !== undefined) return void response.end(this.page);
    if (fault === "hold") return;
    const { hostname, port } = this.#target;
    const { method, url: path } = request;
    const headers = { ...request.headers, host: this.#target.host };
    const forwarded = http.request({ hostname, port, method, path, headers, agent: false });
    forwarded.on("error", () => response.destroy());
    response.on("close", () => forwarded.destroy());
    forwarded.on("response", (reply) => {
      if (fault === "hold-reply") return;
      if (fault === "drop-reply") {
        reply.resume();
        reply.once("end", () => response.destroy());
        return;
      }
      response.writeHead(reply.statusCode ?? 500, reply.headers);
      reply.pipe(response);
    });
    forwarded.end(sent);
  }
}
