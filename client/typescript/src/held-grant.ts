/** A grant that its holder has: what a lease of its own and one of a session have in common. */
import { inspect } from "node:util";
import { FencepostError, InvalidError, LeaseLostError } from "./errors.js";
import type { Log } from "./log.js";
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

/** A grant until it is released; the classes of leases add the trust in it. */
export abstract class HeldGrant implements Fence, Holding, AsyncDisposable {
  readonly #name: string;
  readonly #grant: LeaseReply;
  readonly #log: Log;
  readonly #ended = new AbortController();
  #isReleased = false;

  /** @internal `name` is that of the class, for logs. */
  constructor(name: string, grant: LeaseReply, log: Log) {
    this.#name = name;
    this.#grant = withoutShownCredential(grant);
    this.#log = log;
  }

  /** The grant as the server sent it; logs and copies leave its two credentials out. */
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

  abstract get signal(): AbortSignal;

  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  protected get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Names the lease in logs; its credential is left out. */
  toJSON(): ShownLease {
    const { lock, token, leaseId } = this;
    return { lock, token, leaseId };
  }

  /** @internal */
  [inspect.custom](): string {
    return `${this.#name} ${inspect(this.toJSON())}`;
  }

  check(): void {
    if (this.#isReleased) throw releasedError(this.lock);
    const lost = this.lossNow();
    if (lost) throw lost;
  }

  /** The error of a loss, as the clock says now; `null` while the lease can be trusted. */
  protected abstract lossNow(): LeaseLostError | null;

  /** Records that the holder has ended the lease: a release, and no loss. */
  protected endReleased(): void {
    this.#isReleased = true;
    this.#ended.abort(releasedError(this.lock));
  }

  /** Records the loss of the lease. */
  protected endLost(lost: unknown): void {
    this.#ended.abort(lost);
  }

  abstract release(): Promise<void>;

  /**
   * Releases the lock at the end of an `await using` block; does nothing after a release. Throws
   * `LeaseLostError` alone: any other failure leaves a lease that expires by itself. If the block
   * threw as well, JavaScript throws a `SuppressedError` with both.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isReleased) await releaseOrWarn(this, this.#log);
  }
}

/** The grant with credentials that are read by their names alone. */
function withoutShownCredential(grant: LeaseReply): LeaseReply {
  const hidden = (value: string) => ({ value, enumerable: false });
  return Object.defineProperties(
    { ...grant },
    {
      fencing_token: hidden(grant.fencing_token),
      fencing_credential: hidden(grant.fencing_credential),
    },
  );
}

/** Releases; a failure other than the loss of the lease is logged alone. */
export async function releaseOrWarn(lease: Holding, log: Log): Promise<void> {
  try {
    await lease.release();
  } catch (error) {
    if (error instanceof LeaseLostError || !(error instanceof FencepostError)) throw error;
    log("warn", `${lease.lock} was not released and expires by itself: ${error.message}`);
  }
}
