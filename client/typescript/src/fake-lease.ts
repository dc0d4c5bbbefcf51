/** Leases, waiters and sessions of the fake lock server, and their form in replies. */
import { formatFencingToken, joinCredentials } from "./credential.js";
import { FakeRefusal } from "./fake-reply.js";
import type { LeaseMode } from "./wire.js";

/** A lock of a request. */
export interface FakeWish {
  readonly lock: string;
  readonly mode?: LeaseMode;
  readonly size?: number;
  readonly min_token?: number;
}

/** Body of an acquire; one of several locks has them in `locks`. */
export interface FakeAcquire extends Omit<FakeWish, "lock"> {
  readonly locks?: readonly FakeWish[];
  readonly ttl_ms?: number;
  readonly wait_ms?: number;
  readonly owner?: string;
  readonly lease_id?: string;
  readonly session_id?: string;
  readonly incarnation?: string;
  readonly takeover?: boolean;
  readonly takeover_of?: string;
  readonly metadata?: unknown;
}

/** A live lease. */
export interface FakeLease {
  readonly id: string;
  readonly token: number;
  readonly owner: string;
  readonly mode: LeaseMode;
  readonly size: number | undefined;
  readonly session: FakeSession | undefined;
  readonly request: FakeAcquire;
  readonly grantedAt: number;
  readonly waitedMs: number;
  ttlMs: number;
  expiresAt: number;
  renewals: number;
}

/** End of a lease, or of an id that was never granted. */
export interface FakeEnd {
  readonly id: string;
  readonly lease: FakeLease | undefined;
  readonly reason: string;
  readonly why: string | undefined;
  readonly at: number;
}

/** State of one lock. */
export interface FakeLock {
  live: FakeLease[];
  ended: FakeEnd[];
  /** Incarnations that were taken over. */
  readonly former: Set<string>;
}

/** A session that is live, or was. */
export interface FakeSession {
  readonly id: string;
  readonly owner: string;
  readonly ttlMs: number;
  readonly beganAt: number;
  expiresAt: number;
  heartbeats: number;
  ended: string | null;
}

/** One of the requests that wait under one lease id. */
export interface FakeTurn {
  readonly until: number;
  settle(outcome: object[] | FakeRefusal): void;
}

/** A waiter, with the requests that await its grant. */
export interface FakeWaiter {
  readonly id: string;
  readonly wishes: readonly FakeWish[];
  readonly request: FakeAcquire;
  readonly owner: string;
  readonly session: FakeSession | undefined;
  readonly since: number;
  readonly turns: Set<FakeTurn>;
}

/** Whole milliseconds from one moment to a later one. */
export function sinceMs(at: number, now: number): number {
  return Math.max(Math.round(now - at), 0);
}

/** Time until a lease expires unless it is renewed, in milliseconds. */
export function leftMs({ session, expiresAt }: FakeLease, now: number): number {
  return Math.max(Math.floor((session?.expiresAt ?? expiresAt) - now), 0);
}

/** A lease as the server shows it to others. */
export function holderOf(lease: FakeLease, now: number): object {
  const { id, owner, token, mode, grantedAt, ttlMs, renewals, session, request } = lease;
  return {
    lease_id: id,
    owner,
    token,
    held_ms: sinceMs(grantedAt, now),
    expires_in_ms: leftMs(lease, now),
    ttl_ms: ttlMs,
    renewals,
    ...(mode !== "exclusive" && { mode }),
    session_id: session?.id,
    incarnation: request.incarnation,
    metadata: request.metadata,
  };
}

/** A lease as its holder gets it. */
export function replyOf(lock: string, lease: FakeLease, now: number): object {
  const { id, token, owner, mode, waitedMs } = lease;
  const parts = { token, lock, lease: id, namespace: "default", signature: null };
  const fencing_token = formatFencingToken(parts);
  return {
    lock,
    lease_id: id,
    token,
    ttl_ms: leftMs(lease, now),
    owner,
    waited_ms: waitedMs,
    ...(mode !== "exclusive" && { mode }),
    fencing_credential: joinCredentials([fencing_token]),
    fencing_token,
  };
}

/** Member of a refusal of several locks: the one that refused. */
export function partOf({ locks }: FakeAcquire, lock: string): { lock?: string } {
  return locks ? { lock } : {};
}

/** Refusal of an id that another owner's request has. */
export function idConflict(request: FakeAcquire, lock: string, owner: string): FakeRefusal {
  const detail = `this lease_id on lock ${lock} belongs to a request of ${owner}`;
  return new FakeRefusal(409, "lease-id-conflict", detail, partOf(request, lock));
}

/** Refusal of a lease that has ended. */
export function lost(lock: string, reason: string, why?: string, part = {}): FakeRefusal {
  const said = why === undefined ? "" : ` (${why})`;
  const detail = `the lease on lock ${lock} has ended: ${reason}${said}`;
  return new FakeRefusal(410, "lease-lost", detail, { ...part, reason, why });
}

/** Refusal of a session that has ended. */
export function sessionEnded({ id, ended }: FakeSession): FakeRefusal {
  const members = { session_id: id, reason: ended };
  return new FakeRefusal(410, "session-ended", `session ${id} has ended: ${ended}`, members);
}
