/** A lease of a session, and several that were granted in one step. */
import { inspect } from "node:util";
import { nowMs } from "./clock.js";
import { LeaseLostError, type LostReason } from "./errors.js";
import {
  type Fence,
  type Holding,
  releasedError,
  releaseOrWarn,
  type ShownLease,
  shownLease,
} from "./lease.js";
import type { SessionState } from "./session-state.js";
import type { LeaseReply } from "./wire.js";

/**
 * Lease that lives as long as its session: one heartbeat keeps all of them. Lost with the session,
 * or alone when the server ends it, which the next heartbeat shows.
 */
export class SessionLease implements Fence, Holding, AsyncDisposable {
  readonly #grant: LeaseReply;
  readonly #state: SessionState<SessionLease>;
  readonly #controller = new AbortController();
  readonly #ended = new AbortController();
  #over: LostReason | null = null;
  #isReleased = false;

  /** @internal */
  constructor(state: SessionState<SessionLease>, grant: LeaseReply) {
    this.#grant = grant;
    this.#state = state;
    state.hold(this);
  }

  /** The grant as the server sent it; it contains the credential. */
  get grant(): LeaseReply {
    return this.#grant;
  }

  get lock(): string {
    return this.#grant.lock;
  }

  get token(): number {
    return this.#grant.token;
  }

  get leaseId(): string {
    return this.#grant.lease_id;
  }

  get fencingToken(): string {
    return this.#grant.fencing_token;
  }

  get fencingCredential(): string {
    return this.#grant.fencing_credential;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  /** Names the lease in logs; its credential is left out. */
  toJSON(): ShownLease {
    return shownLease(this);
  }

  /** @internal */
  [inspect.custom](): string {
    return `SessionLease ${inspect(this.toJSON())}`;
  }

  /** Time in milliseconds for which the lease is trusted if no heartbeat succeeds. */
  remainingMs(): number {
    return this.#isReleased || this.#over ? 0 : this.#state.trust.remainingMs();
  }

  check(): void {
    if (this.#isReleased) throw releasedError(this.lock);
    const lost = this.#state.trust.lost() ?? this.#over;
    if (lost) throw LeaseLostError.of(this.lock, lost);
  }

  /** Reports progress of the session; see `Lease.progress`. */
  progress(): void {
    this.check();
    this.#state.trust.progress();
  }

  /** Releases this lock alone; as `Lease.release`. The session stays. */
  async release(): Promise<void> {
    if (this.#isReleased) throw releasedError(this.lock);
    const workEnd = this.#over ? null : this.#state.trust.workEnd();
    this.endWithSession();
    try {
      await this.#state.trust.untilExpired((signal) =>
        this.#state.context.locks.release(this.lock, this.leaseId, { signal }),
      );
    } catch (error) {
      if (!workEnd?.excuses(error, nowMs())) throw error;
    }
  }

  /** Releases the lock at the end of an `await using` block; as of `Lease`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isReleased) await releaseOrWarn(this, this.#state.context.log);
  }

  /** @internal Records that its holder has ended it or the session: a release, and no loss. */
  endWithSession(): void {
    this.#isReleased = true;
    this.#state.letGo(this);
    this.#ended.abort(releasedError(this.lock));
  }

  /** @internal Records that the lease has ended, alone or with its session. */
  lose(why: LostReason): void {
    if (this.#over !== null || this.#isReleased) return;
    this.#over = why;
    this.#state.letGo(this);
    const lost = LeaseLostError.of(this.lock, why);
    this.#controller.abort(lost);
    this.#ended.abort(lost);
  }
}

/** Several leases of a session, in the order of the request. */
export class LeaseSet implements AsyncDisposable {
  readonly leases: readonly SessionLease[];

  /** @internal */
  constructor(leases: readonly SessionLease[]) {
    this.leases = leases;
  }

  /** The lease on this lock. */
  on(lock: string): SessionLease | undefined {
    return this.leases.find((lease) => lease.lock === lock);
  }

  /** One password of all, for the guard's Redis port (at most 16). */
  get fencingCredential(): string {
    return this.leases.map((lease) => lease.fencingCredential).join(".");
  }

  /** Throws if one of the leases cannot be trusted now. */
  check(): void {
    for (const lease of this.leases) lease.check();
  }

  /** Releases all; rejects with the first failure, after all have ended. */
  async release(): Promise<void> {
    const released = await Promise.allSettled(this.leases.map((lease) => lease.release()));
    const failed = released.find((outcome) => outcome.status === "rejected");
    if (failed?.status === "rejected") throw failed.reason;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const lease of this.leases) await lease[Symbol.asyncDispose]();
  }
}
