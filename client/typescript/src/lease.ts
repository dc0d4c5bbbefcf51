/** A held lease: renewed in the background, watched by the local clock, released at the end. */
import { inspect } from "node:util";
import { nowMs } from "./clock.js";
import { FencepostError, InvalidError, LeaseLostError, StaleError } from "./errors.js";
import { type GrantContext, type Granted, obtain } from "./grants.js";
import type { Spec } from "./lock-spec.js";
import { keepExtending, LeaseRenewal } from "./renewal.js";
import { Trust } from "./trust.js";
import type { LeaseReply } from "./wire.js";

/** A lease that fenced calls accept: one of its own, or one of a session. */
export interface Fence {
  readonly lock: string;
  readonly token: number;
  /** The value of the `Fencing-Token` header. */
  readonly fencingToken: string;
  /** The same as a password, for the guard's Redis port. */
  readonly fencingCredential: string;
  /** Aborted when the lease is lost, with the `LeaseLostError`. */
  readonly signal: AbortSignal;
  /** Aborted when the lease is lost or released: from then on nothing may use its credential. */
  readonly ended: AbortSignal;
  /**
   * Throws `LeaseLostError` if the lease cannot be trusted now, and `InvalidError` (code
   * `released`) after its release. Reads the clock, so that it is right even if the event loop was
   * blocked; sends nothing.
   */
  check(): void;
}

/** A lease that a block can be run under. */
export interface Holding {
  /** Name of the lock, for messages. */
  readonly lock: string;
  readonly signal: AbortSignal;
  check(): void;
  release(): Promise<void>;
}

/** Error of a lease that is used after its release. */
export function releasedError(what: string): InvalidError {
  const message = `the lease on ${what} was released by this program; acquire the lock again`;
  return new InvalidError(message, { code: "released" });
}

/** A lease as logs show it, without its credential. */
export interface ShownLease {
  readonly lock: string;
  readonly token: number;
  readonly leaseId: string;
}

/** What logs show of a lease. */
export function shownLease({ lock, token, leaseId }: ShownLease): ShownLease {
  return { lock, token, leaseId };
}

/**
 * Live lease on a lock, renewed in the background until it is released.
 *
 * It can be lost at any time: `signal` is aborted then, and fenced calls with it fail without being
 * sent. Neither the lease nor its renewal keeps the process alive; a process that ends without a
 * release keeps the lock until the lease expires. Usable in its own thread alone: pass
 * `fencingToken` to a worker thread, which cannot know whether the lease is lost.
 */
export class Lease implements Fence, Holding, AsyncDisposable {
  readonly #grant: LeaseReply;
  readonly #context: GrantContext;
  readonly #spec: Spec;
  readonly #trust: Trust;
  readonly #renewal = new AbortController();
  readonly #ended = new AbortController();
  #isReleased = false;
  #isAboveMarks = false;

  /** @internal Starts to renew and watch a lease that was granted for `spec`. */
  constructor(context: GrantContext, { reply, window }: Granted, spec: Spec) {
    this.#grant = reply;
    this.#context = context;
    this.#spec = spec;
    this.#trust = new Trust(reply.lock, window, spec.limits, spec.onWarning, context.log);
    const lease = {
      lock: reply.lock,
      leaseId: reply.lease_id,
      token: reply.token,
      ttlMs: spec.ttlMs,
    };
    const renewal = new LeaseRenewal(this.#trust, context.log, context.locks, lease);
    const { signal } = this.#trust;
    signal.addEventListener("abort", () => this.#ended.abort(signal.reason), { once: true });
    void keepExtending(renewal, this.#renewal.signal);
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
    return this.#trust.signal;
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
    return `Lease ${inspect(this.toJSON())}`;
  }

  /** Time in milliseconds for which the lease is trusted if no renewal succeeds; zero once lost. */
  remainingMs(): number {
    return this.#isReleased ? 0 : this.#trust.remainingMs();
  }

  check(): void {
    if (this.#isReleased) throw releasedError(this.lock);
    const lost = this.#trust.error();
    if (lost) throw lost;
  }

  /** Reports that the work makes progress, for `progressWithinMs`; otherwise a {@link check}. */
  progress(): void {
    if (this.#isReleased || !this.#trust.progress()) this.check();
  }

  /**
   * Releases the lock; retries for up to 5 s if no reply arrives, and no longer than the lease
   * lasts.
   *
   * Rejects with `LeaseLostError` if the lease had ended before: unfenced effects of the work may
   * overlap with another holder's. A lease that is live when this is called and expires before a
   * reply arrives is no error, because the work under it ended in time; neither is a retry that
   * finds the lock with the next holder.
   */
  async release(): Promise<void> {
    if (this.#isReleased) throw releasedError(this.lock);
    const workEnd = this.#trust.workEnd();
    try {
      await this.releaseLive();
    } catch (error) {
      if (!workEnd.excuses(error, nowMs())) throw error;
      const why = "the lease ended before its release had a reply, but its work had ended in time";
      this.#context.log("warn", `${this.lock}: ${why}`);
    }
  }

  /** @internal Releases the lock; resolves only if the lease was live at the server until then. */
  releaseLive(): Promise<void> {
    this.#isReleased = true;
    this.#renewal.abort();
    this.#trust.unwatch();
    this.#ended.abort(releasedError(this.lock));
    return this.#trust.untilExpired((signal) =>
      this.#context.locks.release(this.lock, this.leaseId, { signal }),
    );
  }

  /**
   * Releases this lease and acquires the lock with a token above the guard's mark, if the lock
   * server lost its memory and issues tokens below the marks. `refusal` is the guard's error.
   *
   * Nearly always a refused holder is stale and must stop: it gets `LeaseLostError`, because the
   * release succeeds only if the lease was live at the server until then. The result is another
   * grant: restart the work from its first read, and never just retry the refused write. Rejects
   * with `StaleError` if the mark is above the second grant too: an operator must investigate.
   */
  async reacquireAbove(refusal: unknown): Promise<Lease> {
    this.check();
    const mark = this.#markAbove(refusal);
    if (this.#isAboveMarks) {
      throw new StaleError(
        `the lock ${this.lock} was acquired above a guard's mark once, and its token is below ` +
          `the mark ${mark} again: two lock servers issue tokens for one guard, or tokens are ` +
          "forged; an operator must investigate",
      );
    }
    await this.releaseLive();
    const spec = { ...this.#spec, minToken: mark };
    const lease = new Lease(this.#context, await obtain(this.#context, spec), spec);
    lease.#isAboveMarks = true;
    return lease;
  }

  /** The mark of a guard's refusal of this lease's token. */
  #markAbove(refusal: unknown): number {
    const { minToken = null, problem = null } = refusal instanceof StaleError ? refusal : {};
    const isOurs = problem?.["presented"] === this.token && problem["lock"] === this.lock;
    if (minToken === null || minToken < this.token || !isOurs) {
      throw new InvalidError(
        `this is no guard's refusal of token ${this.token} of lock ${this.lock}: ${refusal}`,
      );
    }
    if (this.#spec.mode !== "exclusive") {
      throw new InvalidError(
        `token ${this.token} of lock ${this.lock} (${this.#spec.mode}) is below the mark of ` +
          "another holder: acquire an exclusive lease for guarded data",
      );
    }
    return minToken;
  }

  /**
   * Releases the lock at the end of an `await using` block; does nothing after a release. Throws
   * `LeaseLostError` alone: any other failure leaves a lease that expires by itself. If the block
   * threw as well, JavaScript throws a `SuppressedError` with both.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isReleased) await releaseOrWarn(this, this.#context.log);
  }
}

/** Releases; a failure other than the loss of the lease is logged alone. */
export async function releaseOrWarn(lease: Holding, log: GrantContext["log"]): Promise<void> {
  try {
    await lease.release();
  } catch (error) {
    if (error instanceof LeaseLostError || !(error instanceof FencepostError)) throw error;
    log("warn", `${lease.lock} was not released and expires by itself: ${error.message}`);
  }
}
