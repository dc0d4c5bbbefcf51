/** Connections that carry the token of a lease in their credential. */
import { LeaseLostError, StaleError } from "./errors.js";
import type { Fence } from "./lease.js";

/** User and password under which a connection presents the token of a lease. */
export interface LeaseCredential {
  readonly username: string;
  readonly password: string;
}

/** A driver: how it opens and closes connections of a lease, and which errors are refusals. */
export interface Driver<C> {
  /** Opens a client or a pool that presents this credential at every connect. */
  open(credential: LeaseCredential): C | Promise<C>;
  /** Closes every connection at once, without waiting for replies. */
  close(client: C): unknown;
  /** `true` if the guard refused the token. */
  isRefusal(error: unknown): boolean;
}

/**
 * The connections of the newest lease: one client or pool a lease.
 *
 * All connections of a lease are closed, and none is used again, when it is lost, when the guard
 * refuses its token, and when the next lease takes its place. Late work of an earlier lease fails
 * on its own closed connections and never carries the token of the next one.
 */
export class LeaseConnections<C> {
  readonly #driver: Driver<C>;
  #current: Connected<C> | null = null;

  constructor(driver: Driver<C>) {
    this.#driver = driver;
  }

  /** Closes the connections of the earlier lease and opens those of this one. */
  async use(lease: Fence): Promise<void> {
    this.close();
    lease.check();
    const connected = new Connected(this.#driver, lease);
    this.#current = connected;
    await connected.opened;
  }

  /**
   * Runs `work` with the client of the newest lease. Rejects with `LeaseLostError` if the lease is
   * lost, before anything is sent, and with `StaleError` if the guard refused its token.
   */
  async run<T>(work: (client: C) => Promise<T>): Promise<T> {
    const connected = this.#current;
    if (connected === null) throw new TypeError("no lease is in use; call use(lease) first");
    connected.lease.check();
    const client = await connected.opened;
    connected.lease.check();
    try {
      return await work(client);
    } catch (error) {
      if (!this.#driver.isRefusal(error)) throw error;
      connected.close();
      const { lock, token } = connected.lease;
      const why = error instanceof Error ? error.message : String(error);
      throw new StaleError(`token ${token} of lock ${lock} is stale: ${why}`, {
        cause: error,
      });
    }
  }

  /** Closes the connections; the lease stays as it is. */
  close(): void {
    this.#current?.close();
    this.#current = null;
  }
}

/** The connections of one lease. */
class Connected<C> {
  readonly lease: Fence;
  readonly opened: Promise<C>;
  readonly #driver: Driver<C>;
  readonly #close = () => this.close();
  #isClosed = false;

  constructor(driver: Driver<C>, lease: Fence) {
    this.lease = lease;
    this.#driver = driver;
    this.opened = this.#open();
    // The failure is that of `use`, and of every later `run`.
    this.opened.catch(() => {});
    lease.signal.addEventListener("abort", this.#close, { once: true });
  }

  async #open(): Promise<C> {
    const password = this.lease.fencingCredential;
    const client = await this.#driver.open({ username: "fence", password });
    if (this.#isClosed) {
      this.#driver.close(client);
      this.lease.check();
      throw new LeaseLostError(`the connections of ${this.lease.lock} were closed`, {
        reason: "ended",
        ended: "superseded",
      });
    }
    return client;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.lease.signal.removeEventListener("abort", this.#close);
    this.opened.then((client) => this.#driver.close(client)).catch(() => {});
  }
}
