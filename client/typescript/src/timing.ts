/** Moments at which a lease is renewed and no longer trusted. Pure: no clock and no I/O. */

/** Longest time to live, in milliseconds: a day. */
export const TTL_MS_MAX = 86_400_000;

/** Shortest time-out of a renewal, in milliseconds. */
const RENEWAL_MS_MIN = 50;

/**
 * Time that one reply of the lock server granted to a lease, in milliseconds of the holder's clock.
 *
 * It counts from before the request was sent. The server counts from when it handled the request,
 * which is later, so the window ends before the server's lease does.
 */
export class Window {
  readonly sentAtMs: number;
  readonly ttlMs: number;

  /** A time to live above the protocol's maximum is cut to it. */
  constructor(sentAtMs: number, ttlMs: number) {
    this.sentAtMs = sentAtMs;
    this.ttlMs = Math.min(ttlMs, TTL_MS_MAX);
  }

  /**
   * Moment until which the lease is trusted: 0.8 of its time to live, rounded down. The rest
   * allows for clocks that run at different rates.
   */
  get deadline(): number {
    return this.sentAtMs + trustedMs(this.ttlMs);
  }

  /** Moment of the renewal: a third of the time to live, so that one lost renewal does no harm. */
  get renewAt(): number {
    return this.sentAtMs + Math.floor(this.ttlMs / 3);
  }

  /** Moment at which half of the trusted time has passed. */
  get wornAt(): number {
    return this.sentAtMs + Math.floor(trustedMs(this.ttlMs) / 2);
  }

  /** Moment of the expiry at the server at the earliest, if both clocks run at one rate. */
  get expiresAt(): number {
    return this.sentAtMs + this.ttlMs;
  }

  /** Latest moment to end work by force: 0.95 of the time to live. */
  get killBy(): number {
    return this.sentAtMs + this.ttlMs - Math.ceil(this.ttlMs / 20);
  }

  /** Trusted time left at `nowMs`; zero once it has passed. */
  remainingMs(nowMs: number): number {
    return Math.max(this.deadline - nowMs, 0);
  }

  /** `true` if the lease is trusted at `nowMs`. */
  isLive(nowMs: number): boolean {
    return nowMs < this.deadline;
  }

  /** `true` if less than half of the trusted time is left: such a grant is renewed before use. */
  isWorn(nowMs: number): boolean {
    return this.remainingMs(nowMs) * 2 < trustedMs(this.ttlMs);
  }

  /** Time from `nowMs` after which a renewal without a reply is retried: half of what is left. */
  renewalTimeoutMs(nowMs: number): number {
    return Math.max(Math.floor(this.remainingMs(nowMs) / 2), RENEWAL_MS_MIN);
  }

  /** Time-out of a renewal sent at `nowMs`: the deadline, after which its reply is of no use. */
  replyTimeoutMs(nowMs: number): number {
    return Math.max(this.remainingMs(nowMs), RENEWAL_MS_MIN);
  }
}

function trustedMs(ttlMs: number): number {
  return Math.floor((ttlMs * 4) / 5);
}

const PAUSE_MS_MIN = 50;
const PAUSE_MS_MAX = 1000;

/**
 * Pause before retry `attempt` (1 is the first), in milliseconds: doubles from 50 ms to 1 s, of
 * which the integer `random` picks between a half and the whole.
 */
export function pauseMs(attempt: number, random: number): number {
  const whole = Math.min(PAUSE_MS_MIN * 2 ** Math.min(Math.max(attempt - 1, 0), 10), PAUSE_MS_MAX);
  const half = Math.floor(whole / 2);
  return half + (random % (whole - half + 1));
}
