/** The trust in a lease or a session: until when it may be used, or the reason why it may not. */
import { nowMs, reading, type Reading, sleepUntil } from "./clock.js";
import { LeaseLostError, type LostReason } from "./errors.js";
import { WorkEnd } from "./late-release.js";
import { Hold, type Limits, WarnedEnds, type Warning } from "./limits.js";
import { defaultLog, type Log } from "./log.js";
import type { Window } from "./timing.js";

/** Longest time between two looks at the clock, in milliseconds: a timer may stop in a suspend. */
const SLICE_MS = 1000;

/**
 * Trust in one lease or session, shared with its renewal or heartbeat.
 *
 * A loss is final: no renewal undoes it, because the work that it protected was cancelled. Every
 * method that says whether the lease is lost reads the clock, so that it is right even if the event
 * loop was blocked and no timer has run.
 */
export class Trust {
  readonly what: string;
  #window: Window;
  #hold: Hold;
  #lost: LostReason | null = null;
  #isWatched = true;
  #watch: NodeJS.Timeout | undefined;
  readonly #controller = new AbortController();
  readonly #warned = new WarnedEnds();
  readonly #log: Log;
  readonly #onWarning: ((warning: Warning) => void) | undefined;

  /** Creates the trust in a live lease; `what` names the lock or the session. */
  constructor(
    what: string,
    window: Window,
    limits: Limits,
    onWarning?: (warning: Warning) => void,
    log: Log = defaultLog,
  ) {
    this.what = what;
    this.#window = window;
    this.#hold = new Hold(limits, reading());
    this.#onWarning = onWarning;
    this.#log = log;
    this.#arm();
  }

  get window(): Window {
    return this.#window;
  }

  /** Aborted when the lease is lost, with the {@link LeaseLostError}. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Reason why the lease cannot be trusted now; `null` if it can. */
  lost(now: Reading = reading()): LostReason | null {
    if (this.#lost === null) {
      const end = this.#hold.nextEnd(this.#window, now);
      if (end.endsAtMs <= now.atMs) this.lose(end.why);
    }
    return this.#lost;
  }

  /** Error of the loss; `null` while the lease can be trusted. */
  error(): LeaseLostError | null {
    const lost = this.lost();
    return lost && LeaseLostError.of(this.what, lost);
  }

  /** Trusted time left if nothing is renewed or reported; zero once the lease is lost. */
  remainingMs(): number {
    const now = reading();
    return this.lost(now) ? 0 : this.#hold.nextEnd(this.#window, now).endsAtMs - now.atMs;
  }

  /** Records that the work makes progress; `false` if the lease was lost by then. */
  progress(): boolean {
    const now = reading();
    if (this.lost(now)) return false;
    this.#hold.progress(now);
    return true;
  }

  /** Replaces the window after a renewal, unless the lease is lost by now. */
  extend(window: Window): void {
    if (this.lost() === null) this.#window = window;
  }

  /** Marks the lease as lost. The first reason stays. */
  lose(why: LostReason): void {
    if (this.#lost !== null) return;
    this.#lost = why;
    this.unwatch();
    this.#controller.abort(LeaseLostError.of(this.what, why));
  }

  /** Records that the work ends now. */
  workEnd(): WorkEnd {
    return new WorkEnd(this.lost() === null ? this.#window.deadline : null);
  }

  /**
   * Calls `release` with a signal that is aborted, with the {@link LeaseLostError}, once the lease
   * has expired: then nothing is left to release.
   */
  async untilExpired<T>(release: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const expiry = new AbortController();
    const expired = this.#expired(expiry.signal).then(
      () => expiry.abort(LeaseLostError.of(this.what, { reason: "deadline" })),
      () => {},
    );
    try {
      return await release(expiry.signal);
    } finally {
      expiry.abort();
      await expired;
    }
  }

  /** Waits until the time to live has passed on this machine's clock. */
  async #expired(signal: AbortSignal): Promise<void> {
    // The heartbeat of a session continues while one of its leases is released.
    while (this.#window.expiresAt > nowMs()) {
      await sleepUntil(this.#window.expiresAt, signal, { keepsAlive: false });
    }
  }

  /** Stops to watch the clock: the holder has ended the lease. */
  unwatch(): void {
    this.#isWatched = false;
    clearTimeout(this.#watch);
  }

  /** Reads the clock and warns, at the next end or warning at the latest. Keeps nothing alive. */
  #arm(): void {
    const now = reading();
    if (this.lost(now) !== null || !this.#isWatched) return;
    let next = this.#hold.nextEnd(this.#window, now).endsAtMs;
    const warning = this.#hold.warnAt(this.#window, now, this.#warned);
    if (warning && warning[0] <= now.atMs) {
      this.#warned.record(warning[1]);
      this.#warn(warning[1]);
    } else if (warning) {
      next = Math.min(next, warning[0]);
    }
    const pause = Math.min(Math.max(next - now.atMs, 1), SLICE_MS);
    this.#watch = setTimeout(() => this.#arm(), pause).unref();
  }

  /** Calls the warning. An error that it throws is logged, and the watch continues. */
  #warn(warning: Warning): void {
    try {
      this.#onWarning?.(warning);
    } catch (error) {
      this.#log("warn", `${this.what}: onWarning has thrown: ${String(error)}`);
    }
  }
}
