/** Re-entry: one holder has one lease and one token, however often it enters. */
import { sleep } from "./clock.js";
import { ContendedError } from "./errors.js";
import { random } from "./ids.js";
import type { Lease } from "./lease.js";
import type { LockOptions } from "./lock-spec.js";
import type { Background } from "./log.js";
import { checkWork } from "./options.js";
import { type RunContext, runUnder } from "./run.js";
import { pauseMs } from "./timing.js";

/** Most retries of an entry that is refused because of this holder's own release. */
const OWN_ATTEMPTS_MAX = 5;

/** What a reentrant lock uses. */
export interface ReentrantContext extends RunContext {
  readonly background: Background;
  lock(name: string, options: LockOptions): Promise<Lease>;
}

/**
 * Lock that its holder may enter again while inside: for a function that needs the lock and calls
 * another one that needs it too.
 *
 * The holder is this object: code that must *not* share the lock makes its own. The first entry
 * acquires the lock; further entries share its lease and token without a request; when the last one
 * has left, the lock is released.
 */
export class ReentrantLock {
  readonly name: string;
  readonly #context: ReentrantContext;
  readonly #options: LockOptions;
  #entries = 0;
  #lease: Promise<Lease> | null = null;
  #lastToken = 0;
  #leaving: Promise<void> = Promise.resolve();

  /** @internal */
  constructor(context: ReentrantContext, name: string, options: LockOptions) {
    this.#context = context;
    this.name = name;
    this.#options = options;
  }

  /**
   * Enters, runs `work` and leaves; as `client.withLock`. Rejects with `LeaseLostError` while there
   * are entries whose lease is lost: a new grant would hide from them that they must stop.
   */
  async run<T>(work: (lease: Lease, signal: AbortSignal) => T | Promise<T>): Promise<T> {
    checkWork("run", work);
    const lease = await this.#enter();
    const entry: Entry = new Entry(lease, () => this.#leave(lease));
    const inner = (_: Entry, signal: AbortSignal) => work(lease, signal);
    return runUnder(entry, inner, this.#options.signal, this.#context);
  }

  async #enter(): Promise<Lease> {
    this.#entries += 1;
    try {
      this.#lease ??= this.#acquire();
      const lease = await this.#lease;
      lease.check();
      return lease;
    } catch (error) {
      this.#entries -= 1;
      if (this.#entries === 0) this.#lease = null;
      throw error;
    }
  }

  async #acquire(): Promise<Lease> {
    await this.#leaving;
    for (let attempt = 1; ; attempt += 1) {
      try {
        const lease = await this.#context.lock(this.name, this.#options);
        this.#lastToken = lease.token;
        return lease;
      } catch (error) {
        // The server has not seen the release of this holder's last lease yet.
        const isOwn = error instanceof ContendedError && error.holder?.token === this.#lastToken;
        if (!isOwn || attempt > OWN_ATTEMPTS_MAX) throw error;
        await sleep(pauseMs(attempt, random()), this.#options.signal);
      }
    }
  }

  /** Leaves; the last entry releases the lock. */
  async #leave(lease: Lease): Promise<void> {
    this.#entries -= 1;
    if (this.#entries > 0) return lease.check();
    this.#lease = null;
    const released = lease.release();
    this.#leaving = released.catch(() => {});
    return released;
  }
}

/** One entry into the lock, which is released by leaving. */
class Entry {
  #hasLeft = false;

  constructor(
    private readonly lease: Lease,
    private readonly leave: () => Promise<void>,
  ) {}

  get lock(): string {
    return this.lease.lock;
  }

  get signal(): AbortSignal {
    return this.lease.signal;
  }

  check(): void {
    this.lease.check();
  }

  async release(): Promise<void> {
    if (this.#hasLeft) return;
    this.#hasLeft = true;
    await this.leave();
  }
}
