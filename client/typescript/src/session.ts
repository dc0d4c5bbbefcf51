/** Sessions: many leases kept alive by one heartbeat. */
import type { Attempted } from "./attempts.js";
import { nowMs } from "./clock.js";
import { FencepostError, InvalidError, LeaseLostError, type LostReason } from "./errors.js";
import { type Granted, obtain, obtainAll } from "./grants.js";
import { releasedError } from "./held-grant.js";
import {
  checkLock,
  checkMode,
  checkTimes,
  type Identity,
  LOCK_ALL_OPTIONS,
  SESSION_LOCK_OPTIONS,
  type SessionLockOptions,
  type WaitOptions,
} from "./lock-spec.js";
import { CALL_MS, type LockWish } from "./locks.js";
import { checkLockName, checkMetadata, checkToken, LOCKS_MAX } from "./names.js";
import { checkOptions, typeName } from "./options.js";
import { endReason } from "./problem.js";
import { type Extension, keepExtending } from "./renewal.js";
import type { BeginContext, Begun } from "./session-begin.js";
import { LeaseSet, SessionLease } from "./session-lease.js";
import { SessionState } from "./session-state.js";
import { isSessionOver } from "./sessions.js";
import { Window } from "./timing.js";
import { Failure } from "./transport.js";
import { Trust } from "./trust.js";
import type { Limits, Warning } from "./limits.js";
import type { LeaseMode } from "./wire.js";

const ENDED: LostReason = { reason: "ended", ended: "session-ended" };

/** One lock of several: its name, or with a mode. */
export type Wish = string | { lock: string; mode?: LeaseMode; size?: number; minToken?: number };

/** Options of an acquire of several locks. */
export interface LockAllOptions extends WaitOptions {
  metadata?: unknown;
}

/**
 * Session at the lock server: one heartbeat in the background keeps all its leases alive.
 *
 * Its leases are lost together, at the latest when 0.8 of its time to live has passed without a
 * heartbeat. Like a lease it does not keep the process alive.
 */
export class Session implements AsyncDisposable {
  readonly #context: BeginContext;
  readonly #identity: Identity;
  readonly #state: SessionState<SessionLease>;
  readonly #heartbeat = new AbortController();
  #isEnded = false;

  /** @internal */
  constructor(
    context: BeginContext,
    identity: Identity,
    { reply, window }: Begun,
    options: {
      ttlMs: number;
      limits: Limits;
      onWarning: ((warning: Warning) => void) | undefined;
    },
  ) {
    this.#context = context;
    this.#identity = identity;
    const { session_id: id, owner } = reply;
    const trust = new Trust(
      `session ${id}`,
      window,
      options.limits,
      options.onWarning,
      context.log,
    );
    this.#state = new SessionState<SessionLease>(context, id, owner, options.ttlMs, trust);
    this.#state.onMismatch = () => void this.#probe();
    void keepExtending(new Heartbeat(context, this.#state), this.#heartbeat.signal);
  }

  get id(): string {
    return this.#state.id;
  }

  /** The owner of the session and of all its leases. */
  get owner(): string {
    return this.#state.owner;
  }

  /** Aborted when the session is lost, with the `LeaseLostError`. */
  get signal(): AbortSignal {
    return this.#state.trust.signal;
  }

  /** The live leases of the session. */
  get leases(): readonly SessionLease[] {
    return [...this.#state.leases];
  }

  /** Time in milliseconds for which the session is trusted if no heartbeat succeeds. */
  remainingMs(): number {
    return this.#isEnded ? 0 : this.#state.trust.remainingMs();
  }

  /** Throws if the session cannot be trusted now; as `Lease.check`. */
  check(): void {
    if (this.#isEnded) throw releasedError(`session ${this.id}`);
    const lost = this.#state.trust.error();
    if (lost) throw lost;
  }

  /** Reports that the work makes progress; as `Lease.progress`. */
  progress(): void {
    if (this.#isEnded || !this.#state.trust.progress()) this.check();
  }

  /** Acquires a lock of this session. */
  async lock(name: string, options: SessionLockOptions = {}): Promise<SessionLease> {
    this.check();
    const checked = checkLock(name, options, this.#identity, SESSION_LOCK_OPTIONS);
    const { id, ttlMs } = this.#state;
    const spec = { ...checked, ttlMs, owner: this.owner, session: id };
    const granted: Granted = await this.#granted(1, () => obtain(this.#context, spec));
    return this.#checked([new SessionLease(this.#state, granted.reply)]).leases[0] as SessionLease;
  }

  /** Acquires all of these locks in one step, or none; each once, at most 64. */
  async lockAll(wishes: readonly Wish[], options: LockAllOptions = {}): Promise<LeaseSet> {
    this.check();
    checkOptions("lockAll", options, LOCK_ALL_OPTIONS);
    const locks = checkWishes(wishes);
    if (options.metadata !== undefined) checkMetadata(options.metadata);
    const times = checkTimes(options);
    const request = {
      locks,
      ttl_ms: this.#state.ttlMs,
      owner: this.owner,
      metadata: options.metadata,
      session_id: this.id,
      incarnation: this.#identity.incarnation,
    };
    const replies = await this.#granted(locks.length, () =>
      obtainAll(this.#context, request, times, options.signal),
    );
    return this.#checked(replies.map((reply) => new SessionLease(this.#state, reply)));
  }

  /**
   * Ends the session and all its leases in one step; retries for up to 5 s if no reply arrives,
   * and no longer than the session lasts. Returns the number of its leases. Rejects with
   * `LeaseLostError` if it had ended before.
   */
  async end(): Promise<number> {
    if (this.#isEnded) throw releasedError(`session ${this.id}`);
    const count = this.#state.leases.size;
    const workEnd = this.#state.workEnd();
    this.#isEnded = true;
    this.#heartbeat.abort();
    this.#state.trust.unwatch();
    for (const lease of this.leases) lease.endWithSession();
    try {
      await this.#state.trust.untilExpired((signal) =>
        this.#context.sessions.end(this.id, { signal }),
      );
    } catch (error) {
      if (!workEnd.excuses(error, nowMs())) throw error;
    }
    return count;
  }

  /** Ends the session at the end of an `await using` block; failures as of `Lease`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isEnded) return;
    try {
      await this.end();
    } catch (error) {
      if (error instanceof LeaseLostError || !(error instanceof FencepostError)) throw error;
      this.#context.log("warn", `session ${this.id} was not ended: ${error.message}`);
    }
  }

  /** Counts the request; a refusal may be the first to say that the session has ended. */
  async #granted<T>(count: number, acquire: () => Promise<T>): Promise<T> {
    try {
      return await this.#state.waiting(count, acquire);
    } catch (error) {
      if (error instanceof LeaseLostError && error.ended === "session-ended") {
        this.#state.trust.lose(ENDED);
      }
      throw error;
    }
  }

  /** The leases, unless the session or one of them ended during the wait. */
  #checked(leases: SessionLease[]): LeaseSet {
    const set = new LeaseSet(leases);
    try {
      set.check();
    } catch (error) {
      const released = set.release().catch((why: unknown) => {
        this.#context.log("debug", `locks of a lost session were not released: ${String(why)}`);
      });
      this.#context.background.add(released);
      throw error;
    }
    return set;
  }

  async #probe(): Promise<void> {
    const isLive = async (lease: SessionLease): Promise<boolean> => {
      const sending = {
        timeoutMs: CALL_MS,
        signal: this.#heartbeat.signal,
        keepsAlive: false,
      };
      const reply = await this.#context.locks.renewOnce(lease.lock, lease.leaseId, sending);
      if (!(reply instanceof Failure)) return true;
      if (reply.problem?.code === "lease-lost") {
        const ended = endReason(reply.problem);
        if (ended === "session-ended") this.#state.trust.lose(ENDED);
        else lease.lose({ reason: "ended", ended });
      }
      return false;
    };
    // The probe ends by the abort of the heartbeat alone.
    await this.#state.probe(isLive).catch(() => {});
  }
}

const WISH_OPTIONS = { lock: "value", mode: "value", size: "value", minToken: "value" } as const;

/** Checks the locks of one request: 1 to 64, each once. */
export function checkWishes(wishes: readonly Wish[]): LockWish[] {
  if (!Array.isArray(wishes)) {
    throw new InvalidError(`locks must be an array, not ${typeName(wishes)}`);
  }
  if (wishes.length < 1 || wishes.length > LOCKS_MAX) {
    throw new InvalidError(`locks: ${wishes.length}; must be 1 to ${LOCKS_MAX}`);
  }
  const seen = new Set<string>();
  return wishes.map((wish) => {
    const {
      lock,
      mode = "exclusive",
      size,
      minToken,
    } = typeof wish === "string" ? { lock: wish } : wish;
    if (typeof wish === "object") checkOptions("a lock of several", wish, WISH_OPTIONS);
    checkLockName(lock);
    checkMode(mode, size);
    if (minToken !== undefined) checkToken("minToken", minToken);
    if (seen.has(lock)) throw new InvalidError(`locks: ${lock} is there twice`);
    seen.add(lock);
    return { lock, mode: mode === "exclusive" ? undefined : mode, size, min_token: minToken };
  });
}

/** The heartbeat, which also shows by its count whether a single lease has ended. */
class Heartbeat implements Extension {
  readonly name = "a heartbeat";
  readonly #context: BeginContext;
  readonly #state: SessionState<SessionLease>;

  constructor(context: BeginContext, state: SessionState<SessionLease>) {
    this.#context = context;
    this.#state = state;
  }

  get trust(): Trust {
    return this.#state.trust;
  }

  get log(): BeginContext["log"] {
    return this.#context.log;
  }

  async attempt(sent: { timeoutMs: number; signal: AbortSignal }): Promise<Attempted<LostReason>> {
    const { id, ttlMs, trust } = this.#state;
    const expected = this.#state.expected();
    const sentAtMs = nowMs();
    const reply = await this.#context.sessions.heartbeatOnce(id, {
      ...sent,
      keepsAlive: false,
    });
    if (reply instanceof Failure) {
      return isSessionOver(reply) ? { final: ENDED } : { failed: reply.reason };
    }
    trust.extend(new Window(sentAtMs, Math.min(reply.expires_in_ms, ttlMs)));
    this.#state.compare(reply.lease_count, expected);
    return "done";
  }
}
