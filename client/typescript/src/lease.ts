/** A held lease: renewed in the background, watched by the local clock, released at the end. */
import { nowMs } from "./clock.js";
import { InvalidError, type LeaseLostError, StaleError } from "./errors.js";
import { type GrantContext, type Granted, obtain } from "./grants.js";
import { HeldGrant, releasedError } from "./held-grant.js";
import type { Spec } from "./lock-spec.js";
import { keepExtending, LeaseRenewal } from "./renewal.js";
import { Trust } from "./trust.js";

/**
 * Live lease on a lock, renewed in the background until it is released.
 *
 * It can be lost at any time: `signal` is aborted then, and fenced calls with it fail without being
 * sent. Neither the lease nor its renewal keeps the process alive; a process that ends without a
 * release keeps the lock until the lease expires. Usable in its own thread alone: pass
 * `fencingToken` to a worker thread, which cannot know whether the lease is lost.
 */
export class Lease extends HeldGrant {
  readonly #context: GrantContext;
  readonly #spec: Spec;
  readonly #trust: Trust;
  readonly #renewal = new AbortController();
  #isAboveMarks = false;

  /** @internal Starts to renew and watch a lease that was granted for `spec`. */
  constructor(context: GrantContext, { reply, window }: Granted, spec: Spec) {
    super("Lease", reply, context.log);
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
    signal.addEventListener("abort", () => this.endLost(signal.reason), { once: true });
    void keepExtending(renewal, this.#renewal.signal);
  }

  override get signal(): AbortSignal {
    return this.#trust.signal;
  }

  /** Time in milliseconds for which the lease is trusted if no renewal succeeds; zero once lost. */
  remainingMs(): number {
    return this.isReleased ? 0 : this.#trust.remainingMs();
  }

  protected override lossNow(): LeaseLostError | null {
    return this.#trust.error();
  }

  /** Reports that the work makes progress, for `progressWithinMs`; otherwise a {@link check}. */
  progress(): void {
    if (this.isReleased || !this.#trust.progress()) this.check();
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
  override async release(): Promise<void> {
    if (this.isReleased) throw releasedError(this.lock);
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
    this.#renewal.abort();
    this.#trust.unwatch();
    this.endReleased();
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
}
