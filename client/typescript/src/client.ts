/** The client of one lock server and one guard. */
import { ChildAbort } from "./abort.js";
import { Election } from "./election.js";
import { ContendedError } from "./errors.js";
import { type EventOptions, EventStream } from "./events.js";
import { obtain } from "./grants.js";
import { Lease } from "./lease.js";
import { checkLimits } from "./limits.js";
import {
  checkLock,
  DEFAULT_TTL_MS,
  type LeaseOptions,
  type LockOptions,
  SESSION_OPTIONS,
  TRY_LOCK_OPTIONS,
  type TryLockOptions,
  type WaitOptions,
} from "./lock-spec.js";
import { type CallOptions, Locks } from "./locks.js";
import { Background, defaultLog, type Log } from "./log.js";
import { checkMetadata, checkTtl } from "./names.js";
import { Objects } from "./objects.js";
import { checkOptions, checkWork } from "./options.js";
import { ReentrantLock } from "./reentrant.js";
import { runUnder } from "./run.js";
import { checkWishes, type LockAllOptions, Session, type Wish } from "./session.js";
import { beginSession } from "./session-begin.js";
import { LeaseSet } from "./session-lease.js";
import { Sessions } from "./sessions.js";
import { type ClientOptions, readSettings } from "./settings.js";
import { Endpoint } from "./transport.js";

/** Options of a session. */
export interface SessionOptions extends LeaseOptions, WaitOptions {}

/** Work under a lease; `signal` is aborted when the lease is lost. */
export type Work<L, T> = (lease: L, signal: AbortSignal) => T | Promise<T>;

/** Several leases of a session of their own, which ends with them. */
export interface HeldSet extends AsyncDisposable {
  readonly session: Session;
  readonly leases: LeaseSet["leases"];
  /** Releases all leases in one step, by the end of their session. */
  release(): Promise<void>;
}

/**
 * Client of one lock server and one guard; connects to nothing before the first call. To be shared:
 * its connections are reused by all its leases. A worker thread makes its own.
 */
export class Client {
  /** The lock server's API, one method a call, for tools. */
  readonly locks: Locks;
  /** The lock server's session API, for tools. */
  readonly sessions: Sessions;
  /** The objects behind the guard. */
  readonly objects: Objects;
  /** The owner that this client sends with its requests. */
  readonly owner: string;
  readonly #server: Endpoint;
  readonly #guard: Endpoint;
  readonly #identity: ReturnType<typeof readSettings>["identity"];
  readonly #background = new Background();
  readonly #log: Log;

  /**
   * Reads the settings and the files that they name. Throws `InvalidError` for one that cannot be
   * used. `log` receives what happens in the background; by default a warning of the process.
   */
  constructor(options: ClientOptions & { log?: Log } = {}) {
    const { server, guard, identity, connections } = readSettings(options);
    this.#server = new Endpoint(server, connections);
    this.#guard = new Endpoint(guard, connections);
    this.#identity = identity;
    this.#log = options.log ?? defaultLog;
    this.owner = identity.owner;
    this.locks = new Locks(this.#server);
    this.sessions = new Sessions(this.#server);
    this.objects = new Objects(this.#guard, identity.owner);
  }

  get #context() {
    const { locks, sessions } = this;
    return { locks, sessions, background: this.#background, log: this.#log };
  }

  /**
   * Acquires a lock. At most one grant a call: after a lost reply the request is retried with the
   * same lease id. A wait beyond the five minutes of one request keeps its queue position. If the
   * call fails or its signal is aborted, a grant that it may have caused is released in the
   * background.
   *
   * Rejects with `ContendedError` if another lease holds the lock for longer than the wait,
   * `TakeoverRefusedError`, `UnavailableError`, `OutcomeUnknownError`, `InvalidError`, or the
   * reason of the signal. The caller must release the lease: until then it is renewed while the
   * process lives.
   */
  async lock(name: string, options: LockOptions = {}): Promise<Lease> {
    const spec = checkLock(name, options, this.#identity);
    return new Lease(this.#context, await obtain(this.#context, spec), spec);
  }

  /**
   * Acquires a lock if that is possible at once, and returns `null` if another lease holds it;
   * otherwise as {@link lock}.
   */
  async tryLock(name: string, options: TryLockOptions = {}): Promise<Lease | null> {
    checkOptions("tryLock", options, TRY_LOCK_OPTIONS);
    try {
      return await this.lock(name, options);
    } catch (error) {
      if (error instanceof ContendedError) return null;
      throw error;
    }
  }

  /**
   * `true` if a lease held the lock when the server replied. Base no decision on it that needs the
   * lock: another client may acquire it at any time; use {@link tryLock} for that.
   */
  async isLocked(name: string, options: CallOptions = {}): Promise<boolean> {
    return (await this.locks.show(name, options)).state === "held";
  }

  /**
   * Acquires a lock, runs `work` and releases the lock.
   *
   * `signal` of the work is aborted when the lease is lost, and with `options.signal`; the call
   * waits until the work has settled. It rejects with the work's own error if that threw one, which
   * no failure of the release masks; else with `LeaseLostError` if the lease was lost, even if the
   * work ended well. Otherwise as {@link lock}.
   */
  withLock<T>(name: string, options: LockOptions, work: Work<Lease, T>): Promise<T>;
  withLock<T>(name: string, work: Work<Lease, T>): Promise<T>;
  async withLock<T>(
    name: string,
    first: LockOptions | Work<Lease, T>,
    second?: Work<Lease, T>,
  ): Promise<T> {
    const [options, work] = optionsAndWork("withLock", first, second);
    const lease = await this.lock(name, options);
    return runUnder(lease, work, options.signal, this.#context);
  }

  /** A lock that its holder may enter again while inside; nothing is sent yet. */
  reentrant(name: string, options: LockOptions = {}): ReentrantLock {
    const { background, log } = this.#context;
    checkLock(name, options, this.#identity);
    const lock = (lockName: string, all: LockOptions) => this.lock(lockName, all);
    return new ReentrantLock({ background, log, lock }, name, options);
  }

  /** Acquires all of these locks in one step, or none, by a session of their own. */
  async lockAll(
    wishes: readonly Wish[],
    options: LeaseOptions & LockAllOptions = {},
  ): Promise<HeldSet> {
    checkWishes(wishes);
    checkOptions("lockAll", options, SESSION_OPTIONS);
    const { waitMs, ...ofSession } = options;
    const { patienceMs, signal, metadata } = options;
    const session = await this.session(ofSession);
    try {
      const { leases } = await session.lockAll(wishes, { waitMs, patienceMs, signal, metadata });
      const release = async () => void (await session.end());
      return {
        session,
        leases,
        release,
        [Symbol.asyncDispose]: () => session[Symbol.asyncDispose](),
      };
    } catch (error) {
      const ended = session.end().then(
        () => {},
        (why: unknown) => this.#log("debug", `a session was not ended: ${String(why)}`),
      );
      this.#background.add(ended);
      throw error;
    }
  }

  /**
   * Acquires all of these locks in one step, runs `work` and releases them; `signal` is aborted
   * when one of them is lost. Otherwise as {@link withLock}.
   */
  withLockAll<T>(
    wishes: readonly Wish[],
    options: LeaseOptions & LockAllOptions,
    work: Work<LeaseSet, T>,
  ): Promise<T>;
  withLockAll<T>(wishes: readonly Wish[], work: Work<LeaseSet, T>): Promise<T>;
  async withLockAll<T>(
    wishes: readonly Wish[],
    first: (LeaseOptions & LockAllOptions) | Work<LeaseSet, T>,
    second?: Work<LeaseSet, T>,
  ): Promise<T> {
    const [options, work] = optionsAndWork("withLockAll", first, second);
    const { session, leases, release } = await this.lockAll(wishes, options);
    const set = new LeaseSet(leases);
    const abort = new ChildAbort(session.signal, ...leases.map((lease) => lease.signal));
    const lock = leases.map((lease) => lease.lock).join(", ");
    const held = { lock, signal: abort.signal, check: () => set.check(), release };
    try {
      const inner = (_: object, signal: AbortSignal) => work(set, signal);
      return await runUnder(held, inner, options.signal, this.#context);
    } finally {
      abort.unlink();
    }
  }

  /** Begins a session: one heartbeat in the background keeps all its leases alive. */
  async session(options: SessionOptions = {}): Promise<Session> {
    checkOptions("session", options, SESSION_OPTIONS);
    const { ttlMs = DEFAULT_TTL_MS, metadata, onWarning } = options;
    checkLimits(options);
    if (metadata !== undefined) checkMetadata(metadata);
    const request = { ttl_ms: checkTtl(ttlMs), owner: this.owner, metadata };
    const begun = await beginSession(this.#context, request, options);
    const { progressWithinMs, maxHoldMs, warnBeforeMs } = options;
    const limits = { progressWithinMs, maxHoldMs, warnBeforeMs };
    return new Session(this.#context, this.#identity, begun, { ttlMs, limits, onWarning });
  }

  /** Begins a session, runs `work` and ends the session; otherwise as {@link withLock}. */
  withSession<T>(options: SessionOptions, work: Work<Session, T>): Promise<T>;
  withSession<T>(work: Work<Session, T>): Promise<T>;
  async withSession<T>(
    first: SessionOptions | Work<Session, T>,
    second?: Work<Session, T>,
  ): Promise<T> {
    const [options, work] = optionsAndWork("withSession", first, second);
    const session = await this.session(options);
    const held = {
      lock: `session ${session.id}`,
      signal: session.signal,
      check: () => session.check(),
      release: async () => void (await session.end()),
    };
    return runUnder(held, (_, signal) => work(session, signal), options.signal, this.#context);
  }

  /** The election `name`: its leader is the holder of the lock of that name. */
  election(name: string): Election {
    const lock = (lockName: string, options: LockOptions) => this.lock(lockName, options);
    return new Election({ ...this.#context, endpoint: this.#server, lock }, name);
  }

  /** Opens a stream of the events of locks. */
  events(options: EventOptions = {}): Promise<EventStream> {
    return EventStream.open(this.#server, options);
  }

  /**
   * Waits until the background releases of calls that were given up have ended (each takes at most
   * some seconds), then closes idle connections. Releases no lease.
   */
  async close(): Promise<void> {
    await this.#background.drained();
    this.#server.close();
    this.#guard.close();
  }
}

/** The options and the work of a block; the options may be left out. */
function optionsAndWork<O extends object, L, T>(
  call: string,
  first: O | Work<L, T>,
  second: Work<L, T> | undefined,
): [O, Work<L, T>] {
  if (typeof first === "function" && second === undefined) return [{} as O, first];
  checkWork(call, second);
  return [first as O, second as Work<L, T>];
}
