/**
 * `fencepost/testing`: a lock server and a guard in the process of a unit test, in memory.
 *
 * It keeps the contract of the real ones for leases of all modes, waiters, sessions and objects.
 * It has no events, no access control and no signatures: its tokens are for no real guard.
 */
import { once } from "node:events";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { Client } from "./client.js";
import { InvalidError } from "./errors.js";
import type { FakeAcquire, FakeWish } from "./fake-lease.js";
import { FakeLocks } from "./fake-locks.js";
import { FakeObjects } from "./fake-objects.js";
import { FakeRefusal, type FakeReply } from "./fake-reply.js";
import { checkLockName } from "./names.js";
import type { ClientOptions } from "./settings.js";

interface FakeRequest {
  readonly method: string;
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: Buffer;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
}

/** Lock server and guard at one address of this machine, for unit tests. */
export class FakeServer implements AsyncDisposable {
  /** Address of both. */
  readonly url: string;
  readonly #http: http.Server;
  readonly #locks: FakeLocks;
  readonly #objects = new FakeObjects();
  readonly #clients: Client[] = [];
  #advancedMs = 0;

  private constructor(server: http.Server) {
    this.#http = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    this.#locks = new FakeLocks(() => performance.now() + this.#advancedMs);
    server.on("request", (request, response) => void this.#serve(request, response));
  }

  /** Starts one on a free port. */
  static async start(port = 0): Promise<FakeServer> {
    const server = http.createServer().listen(port, "127.0.0.1");
    await once(server, "listening");
    return new FakeServer(server);
  }

  /** A client of this server, without settings of the environment; {@link stop} closes it. */
  client(options: ClientOptions = {}): Client {
    const made = new Client({ env: {}, server: this.url, guard: this.url, ...options });
    this.#clients.push(made);
    return made;
  }

  /**
   * Moves the server's clock on, and not that of its clients: leases and sessions expire, and their
   * holders learn it as in production, by the next renewal or a refused write.
   */
  advance(ms: number): void {
    this.#advancedMs += ms;
    this.#locks.elapse();
  }

  /** The highest token that the guard has seen of a lock; 0 for none. */
  mark(lock: string): number {
    return this.#objects.mark(lock);
  }

  /** Ends the server, and with it all that it has. */
  async stop(): Promise<void> {
    this.#locks.close();
    this.#http.closeAllConnections();
    this.#http.close();
    for (const client of this.#clients) await client.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #serve(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.once("close", () => gone.abort());
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
      const { method = "GET", headers, url = "/" } = request;
      const { pathname, searchParams: query } = new URL(url, this.url);
      const parts = pathname.slice(1).split("/");
      const body = Buffer.concat(chunks);
      send(
        response,
        await this.#handle({ method, parts, query, headers, body, signal: gone.signal }),
      );
    } catch (error) {
      if (!gone.signal.aborted) sendRefusal(response, error);
    }
  }

  async #handle(request: FakeRequest): Promise<FakeReply> {
    const { method, parts, headers, body } = request;
    const [version, kind, ...rest] = parts;
    if (version !== "v1") {
      throw new FakeRefusal(404, "not-found", `there is nothing at ${method} /${parts.join("/")}`);
    }
    const key = rest.map(decodeURIComponent).join("/");
    switch (kind) {
      case "locks":
      case "acquire":
        return { body: await this.#ofLocks(request) };
      case "sessions":
        return { body: this.#ofSessions(request) };
      case "objects":
        return this.#objects.handle({ method, key, headers, body });
      case "fences":
        return this.#objects.seal(
          key.replace(/\/seal$/, ""),
          headers["fencing-token"] as string | undefined,
        );
      default:
        throw new FakeRefusal(501, "not-offered-by-store", `the fake server has no ${kind}`);
    }
  }

  async #ofLocks({ method, parts, query, body, signal }: FakeRequest): Promise<object> {
    const [, kind, name = "", verb] = parts.map(decodeURIComponent);
    if (kind === "locks" && name !== "") checkLockName(name);
    if (method === "GET" && name !== "") return this.#locks.show(name);
    if (method === "GET") {
      const limit = Number(query.get("limit") ?? 100);
      return this.#locks.list(query.get("prefix") ?? "", query.get("after") ?? "", limit);
    }
    const { lease_id: id = "", ...more } = json(body);
    const acquire = json(body) as FakeAcquire;
    if (kind === "acquire") {
      return { leases: await this.#locks.acquire(acquire.locks ?? [], acquire, signal) };
    }
    switch (verb) {
      case "acquire": {
        const wish: FakeWish = { ...acquire, lock: name };
        return (await this.#locks.acquire([wish], acquire, signal))[0] as object;
      }
      case "renew":
        return this.#locks.renew(name, id, more["ttl_ms"]);
      case "release":
        return this.#locks.release(name, id);
      case "revoke":
        return this.#locks.revoke(name, more["reason"], id);
      default:
        throw new FakeRefusal(404, "not-found", `there is no path with ${verb}`);
    }
  }

  #ofSessions({ method, parts, body }: FakeRequest): object {
    const [, , id = "", verb] = parts;
    if (id === "") return this.#locks.beginSession(json(body) as never);
    if (method === "DELETE") return this.#locks.endSession(id);
    return verb === "heartbeat" ? this.#locks.heartbeat(id) : this.#locks.showSession(id);
  }
}

// The members differ by path, and each rule takes those of its own.
function json(body: Buffer): Record<string, any> {
  return body.length === 0 ? {} : (JSON.parse(body.toString()) as Record<string, any>);
}

function send(response: http.ServerResponse, { status = 200, headers, body }: FakeReply): void {
  const isJson = body !== undefined && !Buffer.isBuffer(body);
  response.writeHead(status, { ...(isJson && { "content-type": "application/json" }), ...headers });
  response.end(isJson ? JSON.stringify(body) : body);
}

function refusalOf(error: unknown): FakeRefusal {
  if (error instanceof FakeRefusal) return error;
  if (error instanceof InvalidError) return new FakeRefusal(400, "invalid-request", error.message);
  return new FakeRefusal(500, "internal", String(error));
}

function sendRefusal(response: http.ServerResponse, error: unknown): void {
  const refusal = refusalOf(error);
  const { status, code, message: detail, members, headers } = refusal;
  const type = `urn:fencepost:${code}`;
  const problem = {
    type,
    title: code,
    status,
    code,
    detail,
    hint: "",
    retryable: false,
    ...members,
  };
  const all = { ...headers, "content-type": "application/problem+json" };
  response.writeHead(status, all).end(JSON.stringify(problem));
}
