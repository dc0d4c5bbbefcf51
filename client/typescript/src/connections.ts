/** Connections that carry the token of a lease in their credential. */
import { LeaseLostError, StaleError } from "./errors.js";
import type { Fence } from "./held-grant.js";

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
 * on its own closed connections and never carries the token of the next one: {@link run} takes the
 * lease of the work, and refuses one that is not in use.
 */
export class LeaseConnections<C> {
  readonly #driver: Driver<C>;
  #current: Connected<C> | null = null;

  constructor(driver: Driver<C>) {
    this.#driver = driver;
  }

  /** Closes the connections of the earlier lease and opens those of this one. */
  async use(lease: Fence): Promise<void> {
    lease.check();
    this.close();
    const connected = new Connected(this.#driver, lease);
    this.#current = connected;
    await connected.opened;
  }

  /**
   * Runs `work` with the client of this lease. Rejects with `LeaseLostError` if the lease is lost
   * or another one is in use, before anything is sent, and with `StaleError` if the guard refused
   * its token.
   */
  async run<T>(lease: Fence, work: (client: C) => Promise<T>): Promise<T> {
    lease.check();
    const connected = this.#current;
    if (connected === null) throw new TypeError("no lease is in use; call use(lease) first");
    if (connected.lease !== lease) throw supersededError(lease);
    connected.check();
    const client = await connected.opened;
    connected.check();
    try {
      return await work(client);
    } catch (error) {
      if (!this.#driver.isRefusal(error)) throw error;
      const { lock, token } = lease;
      const why = error instanceof Error ? error.message : String(error);
      const stale = new StaleError(`token ${token} of lock ${lock} is stale: ${why}`, {
        cause: error,
      });
      connected.close(stale);
      throw stale;
    }
  }

  /** Closes the connections; the lease stays as it is. */
  close(): void {
    this.#current?.close();
    this.#current = null;
  }
}

/** Error of a lease whose connections were closed for those of another one. */
function supersededError(lease: Fence): LeaseLostError {
  const message = `the connections of ${lease.lock} were closed: another lease is in use`;
  return new LeaseLostError(message, { reason: "ended", ended: "superseded" });
}

/** The connections of one lease. */
class Connected<C> {
  readonly lease: Fence;
  readonly opened: Promise<C>;
  readonly #driver: Driver<C>;
  readonly #close = () => this.close();
  #isClosed = false;
  #refusal: StaleError | null = null;

  constructor(driver: Driver<C>, lease: Fence) {
    this.lease = lease;
    this.#driver = driver;
    this.opened = this.#open();
    // The failure is that of `use`, and of every later `run`.
    this.opened.catch(() => {});
    lease.ended.addEventListener("abort", this.#close, { once: true });
  }

  async #open(): Promise<C> {
    const password = this.lease.fencingCredential;
    const client = await this.#driver.open({ username: "fence", password });
    if (this.#isClosed) {
      this.#driver.close(client);
      this.check();
    }
    return client;
  }

  /** Throws if the lease or its connections have ended. */
  check(): void {
    this.lease.check();
    if (this.#refusal !== null) throw this.#refusal;
    if (this.#isClosed) throw supersededError(this.lease);
  }

  /** Closes them; `refusal` is that of the guard, if there was one. */
  close(refusal: StaleError | null = null): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#refusal = refusal;
    this.lease.ended.removeEventListener("abort", this.#close);
    this.opened.then((client) => this.#driver.close(client)).catch(() => {});
  }
}
