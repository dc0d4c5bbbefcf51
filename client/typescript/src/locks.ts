/** The lock server's API, one method a call. It neither renews nor watches a deadline. */
import { InternalError } from "./errors.js";
import { checkLockName, checkText } from "./names.js";
import { checkOptions } from "./options.js";
import { endReason } from "./problem.js";
import { untilSettled } from "./sent-change.js";
import { type Endpoint, Failure } from "./transport.js";
import {
  anyObject,
  leaseReplies,
  leaseReply,
  type LeaseMode,
  type LeaseReply,
  lockPage,
  type LockPage,
  lockReply,
  type LockReply,
} from "./wire.js";

/** Time-out of one call, in milliseconds. */
export const CALL_MS = 5000;
/** Time for which a release is retried, in milliseconds; after it the lease expires by itself. */
const RELEASE_MS = 5000;
/** Time-out of a revocation, which seals every guard first, in milliseconds. */
const REVOKE_MS = 30_000;

/** Options of one call. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

/** Types of the options of one call. */
export const CALL_OPTIONS = { signal: "signal" } as const;
const LIST_OPTIONS = {
  ...CALL_OPTIONS,
  prefix: "string",
  after: "string",
  limit: "value",
} as const;
const REVOKE_OPTIONS = { ...CALL_OPTIONS, leaseId: "string" } as const;

/** Body of an acquire. */
export interface AcquireRequest {
  ttl_ms: number;
  wait_ms: number;
  owner?: string | undefined;
  lease_id: string;
  metadata?: unknown;
  min_token?: number | undefined;
  session_id?: string | undefined;
  incarnation: string;
  takeover?: boolean | undefined;
  takeover_of?: string | undefined;
  mode?: LeaseMode | undefined;
  size?: number | undefined;
}

/** One lock of an acquire of several. */
export interface LockWish {
  lock: string;
  mode?: LeaseMode | undefined;
  size?: number | undefined;
  min_token?: number | undefined;
}

/** Body of an acquire of several locks in one step. */
export interface AcquireAllRequest {
  locks: LockWish[];
  ttl_ms: number;
  wait_ms: number;
  owner?: string | undefined;
  lease_id: string;
  metadata?: unknown;
  session_id?: string | undefined;
  incarnation: string;
}

/** How a request is sent. */
export interface Sending {
  timeoutMs: number;
  signal?: AbortSignal | undefined;
  /** `false`: the request does not keep the process alive. */
  keepsAlive?: boolean;
}

/** The lock server's API; see `client.locks`. */
export class Locks {
  readonly #endpoint: Endpoint;

  /** @internal */
  constructor(endpoint: Endpoint) {
    this.#endpoint = endpoint;
  }

  /** @internal Sends one acquire without retries. */
  async acquire(
    lock: string,
    body: AcquireRequest,
    sending: Sending,
  ): Promise<LeaseReply | Failure> {
    const path = lockPath(lock, "/acquire");
    const reply = await this.#endpoint.post({ path, ...sending }, body, leaseReply);
    return reply instanceof Failure ? reply : asRequested(reply, lock, body.lease_id, body.mode);
  }

  /** @internal Sends one acquire of several locks without retries. */
  async acquireAll(body: AcquireAllRequest, sending: Sending): Promise<LeaseReply[] | Failure> {
    const path = "/v1/acquire";
    const reply = await this.#endpoint.post({ path, ...sending }, body, leaseReplies);
    return reply instanceof Failure ? reply : allAsRequested(reply, body);
  }

  /** @internal Sends one renewal without retries. */
  async renewOnce(lock: string, leaseId: string, sending: Sending): Promise<LeaseReply | Failure> {
    const path = lockPath(lock, "/renew");
    const body = { lease_id: leaseId };
    const reply = await this.#endpoint.post({ path, ...sending }, body, leaseReply);
    return reply instanceof Failure ? reply : asRequested(reply, lock, leaseId, reply.mode);
  }

  /**
   * Releases a lease; retries for up to 5 s if no reply arrives. Rejects with `LeaseLostError` if
   * it had ended before; if an attempt of this call whose reply was lost released it, that is a
   * success.
   */
  async release(lock: string, leaseId: string, { signal }: CallOptions = {}): Promise<void> {
    const request = {
      path: lockPath(checkLockName(lock), "/release"),
      timeoutMs: RELEASE_MS,
      signal,
    };
    const body = { lease_id: leaseId };
    const send = () => this.#endpoint.post(request, body, anyObject<object>);
    await untilSettled(`release ${lock}`, RELEASE_MS, send, wasReleased, signal);
  }

  /** Returns the state of a lock: its holders, waiters and history. */
  async show(lock: string, options: CallOptions = {}): Promise<LockReply> {
    checkOptions("show", options, CALL_OPTIONS);
    const { signal } = options;
    const path = lockPath(checkLockName(lock), "");
    const request = { method: "GET", path, timeoutMs: CALL_MS, signal } as const;
    return unwrap(await this.#endpoint.json(request, lockReply), `show ${lock}`, "reads");
  }

  /** Returns a page of held locks whose names begin with `prefix` and follow `after`. */
  async list(
    options: CallOptions & { prefix?: string; after?: string; limit?: number } = {},
  ): Promise<LockPage> {
    checkOptions("list", options, LIST_OPTIONS);
    const { prefix = "", after, limit = 100, signal } = options;
    const query = new URLSearchParams({
      prefix,
      limit: String(limit),
      ...(after && { after }),
    });
    const path = `/v1/locks?${query}`;
    const request = { method: "GET", path, timeoutMs: CALL_MS, signal } as const;
    return unwrap(await this.#endpoint.json(request, lockPage), "list locks", "reads");
  }

  /**
   * Ends every live lease of a lock, or `leaseId` alone, for an operator; guards that the server
   * knows are sealed first. Not retried.
   */
  async revoke(
    lock: string,
    reason: string,
    options: CallOptions & { leaseId?: string } = {},
  ): Promise<Record<string, unknown>> {
    checkOptions("revoke", options, REVOKE_OPTIONS);
    const { leaseId, signal } = options;
    const path = lockPath(checkLockName(lock), "/revoke");
    const body = { reason: checkText("reason", reason), lease_id: leaseId };
    const request = { path, timeoutMs: REVOKE_MS, signal };
    const reply = await this.#endpoint.post(request, body, anyObject<Record<string, unknown>>);
    return unwrap(reply, `revoke ${lock}`, "changes");
  }
}

/** The reply, or the error of the call. */
export function unwrap<T>(reply: T | Failure, what: string, effect: "reads" | "changes"): T {
  if (reply instanceof Failure) throw reply.toError(what, effect);
  return reply;
}

/** Path of a lock; slashes in its name are encoded. */
export function lockPath(lock: string, verb: string): string {
  return `/v1/locks/${encodeURIComponent(lock)}${verb}`;
}

/** `true` if the lease has ended by a release. */
function wasReleased({ problem }: Failure): boolean {
  return problem?.code === "lease-lost" && endReason(problem) === "released";
}

/** The reply, or a failure if it is about another lock, lease or mode: nothing in it is trusted. */
function asRequested(
  reply: LeaseReply,
  lock: string,
  leaseId: string,
  mode: LeaseMode = "exclusive",
): LeaseReply | Failure {
  const { mode: granted = "exclusive" } = reply;
  if (reply.lock === lock && reply.lease_id === leaseId && granted === mode) return reply;
  const about = `${reply.lock} ${reply.lease_id} (${granted})`;
  const message = `the reply to a request about ${lock} is about ${about}`;
  return Failure.unusable(new InternalError(message));
}

/** Checks that every lock was granted as requested, with tokens that rise in that order. */
function allAsRequested(leases: LeaseReply[], body: AcquireAllRequest): LeaseReply[] | Failure {
  const refuse = (why: string) => Failure.unusable(new InternalError(why));
  if (leases.length !== body.locks.length) {
    const counts = `${body.locks.length} locks has ${leases.length} leases`;
    return refuse(`the reply to a request for ${counts}`);
  }
  let below = 0;
  for (const [at, lease] of leases.entries()) {
    const wish = body.locks[at] as LockWish;
    const checked = asRequested(lease, wish.lock, body.lease_id, wish.mode);
    if (checked instanceof Failure) return checked;
    if (lease.token <= below) {
      return refuse(`${lease.lock} was granted token ${lease.token}, not above ${below} before it`);
    }
    below = lease.token;
  }
  return leases;
}
