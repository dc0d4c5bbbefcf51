/**
 * Driver of this package for the conformance scenarios: one JSON object a line on stdin, replies
 * and events as one JSON object a line on stdout. The protocol stands beside the scenarios' runner.
 */
import { createInterface } from "node:readline";
import { setTimeout as timer } from "node:timers/promises";
import {
  Client,
  ContendedError,
  type EventStream,
  FencepostError,
  type Lease,
  LeaseLostError,
  type LeaseMode,
  type LockOptions,
  joinCredentials,
  parseFencingToken,
  pauseMs,
  type Session,
  type SessionLease,
  Window,
} from "../src/index.js";
import { InvalidError } from "../src/index.js";

// The members differ by op, and scenarios send values of wrong types on purpose.
type Request = { id: number; op: string } & Record<string, any>;
type Held = Lease | SessionLease;
type Answer = Record<string, unknown>;
type Handler = (request: Request, signal: AbortSignal) => Answer | Promise<Answer>;

/** Error of the work itself. */
class BodyError extends Error {}

const clients = new Map<string, Client>();
const leases = new Map<string, Held>();
const sessions = new Map<string, Session>();
/** The client of each lease. */
const owners = new WeakMap<Held, Client>();
const sets = new Map<string, Session>();
const streams = new Map<string, EventStream>();
const underWay = new Map<number, AbortController>();

function write(line: unknown): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function known<T>(map: Map<string, T>, name: string): T {
  const found = map.get(name);
  if (found === undefined) throw new InvalidError(`there is no ${name}`);
  return found;
}

/** The clients' errors in the words of the protocol. */
function failure(error: unknown, signal: AbortSignal): Answer {
  if (signal.aborted && error === signal.reason) {
    return { kind: "cancelled", retryable: false, message: "the request was cancelled" };
  }
  if (!(error instanceof FencepostError)) {
    const kind = error instanceof BodyError ? "body" : "internal";
    return {
      kind,
      code: null,
      retryable: false,
      message: String((error as Error).stack ?? error),
    };
  }
  const { kind, code, retryable, message } = error;
  const why = error instanceof LeaseLostError ? { reason: error.reason, end: error.ended } : {};
  const own = error.problem ? code : null;
  return { kind, code: own, retryable, message, ...why };
}

function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function options(request: Request, signal: AbortSignal): LockOptions {
  return {
    ttlMs: request["ttl_ms"],
    waitMs: request["wait_ms"],
    mode: request["mode"] as LeaseMode | undefined,
    size: request["size"],
    metadata: request["metadata"],
    minToken: request["min_token"],
    takeover: request["takeover"],
    progressWithinMs: request["progress_within_ms"],
    maxHoldMs: request["max_hold_ms"],
    signal,
  };
}

/** Keeps a lease under a name, and reports its loss. */
function keep(name: string, lease: Held, client: Client): Answer {
  leases.set(name, lease);
  owners.set(lease, client);
  lease.signal.addEventListener("abort", () => {
    const { reason, ended: end } = lease.signal.reason as LeaseLostError;
    write({ event: "lost", lease: name, reason, end });
  });
  return {
    token: lease.token,
    lease_id: lease.leaseId,
    lock: lease.lock,
    remaining_ms: lease.remainingMs(),
    fencing_token: lease.fencingToken,
    fencing_credential: lease.fencingCredential,
  };
}

/** A client with the options that the request names, and nothing from the environment. */
function makeClient(request: Request): Client {
  const log = (level: string, message: string) => process.stderr.write(`${level}: ${message}\n`);
  if (request["env"]) return new Client({ env: request["env"], log });
  return new Client({
    server: request["server"],
    guard: request["guard"],
    owner: request["owner"],
    incarnation: request["incarnation"],
    token: request["token"],
    authFile: request["token_file"],
    caFile: request["ca_file"],
    clientCert: request["cert"],
    clientKey: request["key"],
    insecureHttp: request["insecure_http"],
    env: {},
    log,
  });
}

async function work(request: Request, signal: AbortSignal): Promise<string> {
  const ms: number = request["body_ms"] ?? 0;
  switch (request["body"] as string) {
    case "fail":
      throw new BodyError("the work failed");
    case "block":
      block(ms);
      return "finished";
    default:
      try {
        await timer(ms, undefined, { signal });
        return "finished";
      } catch {
        return "cancelled";
      }
  }
}

const handlers: Record<string, Handler> = {
  client: (request) => {
    clients.set(request["client"], makeClient(request));
    return {};
  },
  lock: async (request, signal) => {
    const client = known(clients, request["client"]);
    const session = request["session"] && known(sessions, request["session"]);
    const { ttlMs: _, progressWithinMs: _p, maxHoldMs: _m, ...rest } = options(request, signal);
    const lease = session
      ? await session.lock(request["name"], rest)
      : await client.lock(request["name"], options(request, signal));
    return keep(request["lease"], lease, client);
  },
  lock_all: async (request, signal) => {
    const { ttlMs, waitMs } = options(request, signal);
    const client = known(clients, request["client"]);
    const held = await client.lockAll(request["names"], { ttlMs, waitMs, signal });
    sets.set(request["lease"], held.session);
    const granted = held.leases.map((lease) => {
      const { token, lease_id } = keep(`${request["lease"]}:${lease.lock}`, lease, client);
      return { name: lease.lock, token, lease_id };
    });
    return { leases: granted };
  },
  run: async (request, signal) => {
    const client = known(clients, request["client"]);
    const body = await client.withLock(request["name"], options(request, signal), (_, lost) =>
      work(request, lost),
    );
    signal.throwIfAborted();
    return { body };
  },
  check: (request) => {
    const lease = known(leases, request["lease"]);
    lease.check();
    return { remaining_ms: lease.remainingMs() };
  },
  progress: (request) => {
    known(leases, request["lease"]).progress();
    return {};
  },
  release: async (request) => {
    const set = sets.get(request["lease"]);
    if (set) await set.end();
    else await known(leases, request["lease"]).release();
    return {};
  },
  put: async (request, signal) => {
    const lease = known(leases, request["lease"]);
    const { etag } = await objectsOf(request).put(lease, request["key"], request["value"], {
      ...(request["if_match"] !== undefined && { ifMatch: request["if_match"] }),
      ...(request["if_absent"] && { ifAbsent: true }),
      ...(request["op_id"] !== undefined && { opId: request["op_id"] }),
      signal,
    });
    return { etag };
  },
  get: async (request, signal) => {
    const lease = known(leases, request["lease"]);
    const found = await objectsOf(request).get(lease, request["key"], { signal });
    return { value: found?.text() ?? null, etag: found?.etag ?? null };
  },
  delete: async (request, signal) => {
    const lease = known(leases, request["lease"]);
    await objectsOf(request).delete(lease, request["key"], { signal });
    return {};
  },
  session: async (request, signal) => {
    const ttlMs = request["ttl_ms"];
    const session = await known(clients, request["client"]).session({ ttlMs, signal });
    sessions.set(request["session"], session);
    return { session_id: session.id };
  },
  session_check: (request) => {
    known(sessions, request["session"]).check();
    return {};
  },
  session_end: async (request) => ({ leases: await known(sessions, request["session"]).end() }),
  campaign: async (request, signal) => {
    const client = known(clients, request["client"]);
    const election = client.election(request["name"]);
    const lease = await election.campaign({
      ttlMs: request["ttl_ms"],
      signal: limited(request, signal),
    });
    keep(request["leadership"], lease, client);
    return { token: lease.token };
  },
  leader: async (request, signal) => {
    const election = known(clients, request["client"]).election(request["name"]);
    const leader = await election.leader({ signal });
    return { owner: leader?.owner ?? null, token: leader?.token ?? null };
  },
  resign: async (request) => {
    await known(leases, request["leadership"]).release();
    return {};
  },
  events: async (request) => {
    const name: string = request["stream"];
    const stream = await known(clients, request["client"]).events({
      prefix: request["prefix"],
    });
    streams.set(name, stream);
    void follow(name, stream);
    return {};
  },
  events_close: (request) => {
    known(streams, request["stream"]).close();
    return {};
  },
  show: async (request, signal) => {
    const { locks } = known(clients, request["client"]);
    const { state, holder } = await locks.show(request["name"], { signal });
    return { state, owner: holder?.owner ?? null };
  },
  revoke: async (request) => {
    await known(clients, request["client"]).locks.revoke(request["name"], request["reason"]);
    return {};
  },
  cancel: (request) => {
    const target = underWay.get(request["target"]);
    if (!target) throw new InvalidError("no such request is under way");
    target.abort();
    return {};
  },
  block_loop: (request) => {
    block(request["ms"]);
    return {};
  },
  window: (request) => {
    const { renewAt, deadline, killBy, expiresAt } = new Window(
      request["sent_at_ms"],
      request["ttl_ms"],
    );
    return { renew_at: renewAt, deadline, kill_by: killBy, expires_at: expiresAt };
  },
  pause: (request) => ({ ms: pauseMs(request["attempt"], request["random"]) }),
  credential: (request) => ({ credential: joinCredentials(request["tokens"]) }),
  parse_token: (request) => {
    const { token, lock, lease } = parseFencingToken(request["header"]);
    return { token, lock, lease };
  },
};

/** The signal of a request, aborted as contended when its wait is over. */
function limited(request: Request, signal: AbortSignal): AbortSignal {
  const waitMs: number | undefined = request["wait_ms"];
  if (waitMs === undefined) return signal;
  const controller = new AbortController();
  signal.addEventListener("abort", () => controller.abort(signal.reason));
  const late = new ContendedError("not elected within the wait");
  setTimeout(() => controller.abort(late), waitMs).unref();
  return controller.signal;
}

function objectsOf(request: Request): Client["objects"] {
  return (owners.get(known(leases, request["lease"])) as Client).objects;
}

async function follow(name: string, stream: EventStream): Promise<void> {
  try {
    for await (const item of stream) {
      if (item.type !== "event") continue;
      const { kind, lock = null } = item.event;
      write({ event: "item", stream: name, kind, lock });
    }
  } catch (error) {
    if (error instanceof FencepostError) write({ event: "stream-failed", message: error.message });
  }
}

async function perform(request: Request): Promise<void> {
  const { id, op } = request;
  const handler = handlers[op];
  if (!handler) return write({ id, unsupported: true });
  const controller = new AbortController();
  underWay.set(id, controller);
  try {
    write({ id, ok: await handler(request, controller.signal) });
  } catch (error) {
    write({ id, error: failure(error, controller.signal) });
  } finally {
    underWay.delete(id);
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const request = JSON.parse(line) as Request;
  if (request.op === "quit") {
    write({ id: request.id, ok: {} });
    process.exit(0);
  }
  void perform(request);
});
