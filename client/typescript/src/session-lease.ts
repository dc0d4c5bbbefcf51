/** A lease of a session, and several that were granted in one step. */
import { nowMs } from "./clock.js";
import { LeaseLostError, type LostReason } from "./errors.js";
import { HeldGrant, releasedError } from "./held-grant.js";
import type { SessionState } from "./session-state.js";
import type { LeaseReply } from "./wire.js";

/**
 * Lease that lives as long as its session: one heartbeat keeps all of them. Lost with the session,
 * or alone when the server ends it, which the next heartbeat shows.
 */
export class SessionLease extends HeldGrant {
  readonly #state: SessionState<SessionLease>;
  readonly #controller = new AbortController();
  #over: LostReason | null = null;

  /** @internal */
  constructor(state: SessionState<SessionLease>, grant: LeaseReply) {
    super("SessionLease", grant, state.context.log);
    this.#state = state;
    state.hold(this);
  }

  override get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Time in milliseconds for which the lease is trusted if no heartbeat succeeds. */
  remainingMs(): number {
    return this.isReleased || this.#over ? 0 : this.#state.trust.remainingMs();
  }

  protected override lossNow(): LeaseLostError | null {
    const lost = this.#state.trust.lost() ?? this.#over;
    return lost && LeaseLostError.of(this.lock, lost);
  }

  /** Reports progress of the session; see `Lease.progress`. */
  progress(): void {
    this.check();
    this.#state.trust.progress();
  }

  /** Releases this lock alone; as `Lease.release`. The session stays. */
  override async release(): Promise<void> {
    if (this.isReleased) throw releasedError(this.lock);
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

  /** @internal Records that its holder has ended it or the session: a release, and no loss. */
  endWithSession(): void {
    this.#state.letGo(this);
    this.endReleased();
  }

  /** @internal Records that the lease has ended, alone or with its session. */
  lose(why: LostReason): void {
    if (this.#over !== null || this.isReleased) return;
    this.#over = why;
    this.#state.letGo(this);
    const lost = LeaseLostError.of(this.lock, why);
    this.#controller.abort(lost);
    this.endLost(lost);
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
