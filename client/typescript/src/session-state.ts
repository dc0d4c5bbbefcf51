/** The state that a session shares with its leases. */
import type { LostReason } from "./errors.js";
import type { GrantContext } from "./grants.js";
import type { WorkEnd } from "./late-release.js";
import { type ExpectedCount, LeaseCount } from "./session-count.js";
import type { Trust } from "./trust.js";

/** A lease that ends with its session. */
export interface SessionBound {
  /** Records that it has ended. */
  lose(why: LostReason): void;
}

/** The trust in a session, and its leases. */
export class SessionState<Held extends SessionBound> {
  readonly leases = new Set<Held>();
  readonly #count = new LeaseCount();
  #waits = 0;
  #workEnd: WorkEnd | null = null;
  /** Called if the server counts other leases than the client. */
  onMismatch: () => void = () => {};

  constructor(
    readonly context: GrantContext,
    readonly id: string,
    readonly owner: string,
    readonly ttlMs: number,
    readonly trust: Trust,
  ) {
    const loseAll = () => {
      const why = trust.lost();
      if (why) for (const lease of [...this.leases]) lease.lose(why);
    };
    trust.signal.addEventListener("abort", loseAll, { once: true });
  }

  /** Adds a lease. */
  hold(lease: Held): void {
    this.leases.add(lease);
    this.#workEnd = null;
    this.#count.change();
  }

  /** Removes a lease that was released or has ended. */
  letGo(lease: Held): void {
    const wasHeld = this.leases.delete(lease);
    if (wasHeld && this.leases.size === 0 && this.#waits === 0) {
      this.#workEnd = this.trust.workEnd();
    }
    this.#count.change();
  }

  /** Counts requests for `count` locks while `work` is under way. */
  async waiting<T>(count: number, work: () => Promise<T>): Promise<T> {
    this.#waits += count;
    this.#workEnd = null;
    this.#count.change();
    try {
      return await work();
    } finally {
      this.#waits -= count;
      this.#count.change();
    }
  }

  /** End of the work: of the last lease, or now. */
  workEnd(): WorkEnd {
    return this.#workEnd ?? this.trust.workEnd();
  }

  expected(): ExpectedCount {
    return this.#count.expect(this.leases.size + this.#waits);
  }

  /** Compares the server's count with that of before the heartbeat. */
  compare(counted: number, expected: ExpectedCount): void {
    if (this.#count.isMismatch(counted, expected)) this.onMismatch();
  }

  /** Probes each lease by `isLive`; if all are live, the difference is explained. */
  async probe(isLive: (lease: Held) => Promise<boolean>): Promise<void> {
    const seen = this.#count.last();
    let areAllLive = true;
    for (const lease of [...this.leases]) areAllLive = (await isLive(lease)) && areAllLive;
    if (areAllLive) this.#count.explain(seen);
  }
}
