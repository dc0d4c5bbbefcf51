/** The lock and the options of a request, checked before anything is sent. */
import { PATIENCE_MS } from "./acquire-plan.js";
import { InvalidError } from "./errors.js";
import { checkLimits, type Limits, type Warning } from "./limits.js";
import {
  checkId,
  checkLockName,
  checkMetadata,
  checkPermits,
  checkToken,
  checkTtl,
  checkWait,
} from "./names.js";
import { checkOptions, type OptionTypes, type TypesOf } from "./options.js";
import type { QueuePosition } from "./queue-position.js";
import type { LeaseMode } from "./wire.js";

/** Options of a wait. */
export interface WaitOptions {
  /**
   * Longest wait in the queue, in milliseconds: 0, so that the server replies at once. `Infinity`
   * waits without end, also for an unreachable server; end the wait with `signal`.
   */
  waitMs?: number | undefined;
  /** Time beyond the wait for which an unreachable server is retried, in milliseconds: 5000. */
  patienceMs?: number | undefined;
  /** Ends the call, with the reason of the signal; a grant that it may have caused is released. */
  signal?: AbortSignal | undefined;
}

/** Options of a lease that is renewed by itself. */
export interface LeaseOptions extends Limits {
  /** Time to live in milliseconds unless it is renewed: 15000; at most a day. */
  ttlMs?: number | undefined;
  /** JSON of at most 4096 bytes, shown to people who inspect the lock. */
  metadata?: unknown;
  /** Called `warnBeforeMs` before a loss, once for each end, and again when that has moved. */
  onWarning?: ((warning: Warning) => void) | undefined;
}

/** Options of a lock. */
export interface LockOptions extends LeaseOptions, WaitOptions {
  /** `exclusive` unless it is `shared`, or `permit` with a `size`. */
  mode?: LeaseMode | undefined;
  /** Permits of the semaphore, 1 to 1024, the same for all its clients. */
  size?: number | undefined;
  /** The grant's token must exceed this one, which a guard has seen. */
  minToken?: number | undefined;
  /** Takes the lock from an earlier incarnation of this owner, before its waiters. */
  takeover?: boolean | undefined;
  /** Takes the lock from this lease of the same owner, whose holder died. */
  takeoverOf?: string | undefined;
  /** Called with the position in the queue after a second of waiting, and when it has changed. */
  onQueued?: ((position: QueuePosition) => void) | undefined;
}

/** Options of one lock of a session, whose time to live and limits are the session's. */
export type SessionLockOptions = Omit<
  LockOptions,
  "ttlMs" | "progressWithinMs" | "maxHoldMs" | "warnBeforeMs" | "onWarning"
>;

/** Options of a lock that is acquired at once or not at all. */
export type TryLockOptions = Omit<LockOptions, "waitMs" | "onQueued">;

/** Types of the options of a wait. */
const WAIT_OPTIONS: TypesOf<WaitOptions> = {
  waitMs: "value",
  patienceMs: "value",
  signal: "signal",
};

/** Types of the options of a lease. */
const LEASE_OPTIONS: TypesOf<LeaseOptions> = {
  ttlMs: "value",
  metadata: "value",
  progressWithinMs: "value",
  maxHoldMs: "value",
  warnBeforeMs: "value",
  onWarning: "function",
};

/** Types of the options of one lock of a session. */
export const SESSION_LOCK_OPTIONS: TypesOf<SessionLockOptions> = {
  ...WAIT_OPTIONS,
  metadata: "value",
  mode: "value",
  size: "value",
  minToken: "value",
  takeover: "boolean",
  takeoverOf: "value",
  onQueued: "function",
};

/** Types of the options of a lock. */
const LOCK_OPTIONS: TypesOf<LockOptions> = {
  ...LEASE_OPTIONS,
  ...SESSION_LOCK_OPTIONS,
};

/** Types of the options of a session, and of several locks. */
export const SESSION_OPTIONS: TypesOf<LeaseOptions & WaitOptions> = {
  ...LEASE_OPTIONS,
  ...WAIT_OPTIONS,
};

/** Types of the options of several locks of a session. */
export const LOCK_ALL_OPTIONS: OptionTypes = { ...WAIT_OPTIONS, metadata: "value" };

const { waitMs: _waitMs, onQueued: _onQueued, ...AT_ONCE_OPTIONS } = LOCK_OPTIONS;

/** Types of the options of a lock that is acquired at once. */
export const TRY_LOCK_OPTIONS: OptionTypes = AT_ONCE_OPTIONS;

const { waitMs: _wait, ...WITHOUT_WAIT } = SESSION_OPTIONS;

/** Types of the options of a candidate. */
export const CAMPAIGN_OPTIONS: OptionTypes = WITHOUT_WAIT;

/** Options with their defaults, checked. */
export interface Spec {
  readonly lock: string;
  readonly ttlMs: number;
  readonly times: { readonly waitMs: number; readonly patienceMs: number };
  readonly signal: AbortSignal | undefined;
  /** Undefined for the owner of the session. */
  readonly owner: string | undefined;
  readonly incarnation: string;
  readonly mode: LeaseMode;
  readonly size: number | undefined;
  readonly minToken: number | undefined;
  readonly metadata: unknown;
  readonly takeover: boolean;
  readonly takeoverOf: string | undefined;
  readonly session: string | undefined;
  readonly limits: Limits;
  readonly onWarning: ((warning: Warning) => void) | undefined;
  readonly onQueued: ((position: QueuePosition) => void) | undefined;
}

/** The holder, as requests name it. */
export interface Identity {
  readonly owner: string;
  /** `false` for the default owner, which differs in every process. */
  readonly isOwnerGiven: boolean;
  readonly incarnation: string;
}

/** Time to live of leases and sessions by default, in milliseconds. */
export const DEFAULT_TTL_MS = 15_000;

/** Checks the times of a wait. */
export function checkTimes(options: WaitOptions): { waitMs: number; patienceMs: number } {
  return {
    waitMs: options.waitMs === Infinity ? Infinity : checkWait("waitMs", options.waitMs ?? 0),
    patienceMs: checkWait("patienceMs", options.patienceMs ?? PATIENCE_MS),
  };
}

/** Checks the mode and the number of permits. */
export function checkMode(mode: LeaseMode, size: number | undefined): void {
  if (!["exclusive", "shared", "permit"].includes(mode)) {
    throw new InvalidError(`mode ${JSON.stringify(mode)} must be exclusive, shared or permit`);
  }
  if (mode === "permit") checkPermits(size as number);
  else if (size !== undefined) throw new InvalidError("size is for the mode permit alone");
}

/** Checks a request for a lock; refuses options that could never be granted. */
export function checkLock(
  lock: string,
  options: LockOptions,
  identity: Identity,
  known: OptionTypes = LOCK_OPTIONS,
): Spec {
  checkOptions("lock", options, known);
  const { mode = "exclusive", size, minToken, metadata, takeover = false, takeoverOf } = options;
  checkMode(mode, size);
  checkLimits(options);
  if (minToken !== undefined) checkToken("minToken", minToken);
  if (metadata !== undefined) checkMetadata(metadata);
  if (takeover && takeoverOf !== undefined) {
    throw new InvalidError("takeover and takeoverOf exclude each other");
  }
  if (takeover || takeoverOf !== undefined) checkTakeover(lock, mode, identity);
  const { progressWithinMs, maxHoldMs, warnBeforeMs, onWarning, signal } = options;
  return {
    lock: checkLockName(lock),
    ttlMs: checkTtl(options.ttlMs ?? DEFAULT_TTL_MS),
    times: checkTimes(options),
    signal,
    owner: identity.owner,
    incarnation: identity.incarnation,
    mode,
    size,
    minToken,
    metadata,
    takeover,
    takeoverOf: takeoverOf === undefined ? undefined : checkId("takeoverOf", takeoverOf),
    session: undefined,
    limits: { progressWithinMs, maxHoldMs, warnBeforeMs },
    onWarning,
    onQueued: options.onQueued,
  };
}

function checkTakeover(lock: string, mode: LeaseMode, identity: Identity): void {
  if (mode !== "exclusive") {
    throw new InvalidError(
      `the lock ${lock} cannot be taken over in mode ${mode}: a takeover is for exclusive leases`,
    );
  }
  if (!identity.isOwnerGiven) {
    throw new InvalidError(
      `the lock ${lock} cannot be taken over as ${identity.owner}: it needs an owner that ` +
        "stays the same after a restart, and this one ends in the process id; configure one " +
        "(owner, FENCE_OWNER)",
    );
  }
}
