/** Errors of the SDK. The class says what the caller should do; the message says what happened. */
import { hintInWords, inWords } from "./words.js";

/** A problem body as the server sent it; members that only some codes have are `unknown`. */
export interface Problem {
  readonly [member: string]: unknown;
  readonly code: string;
  readonly status: number;
  readonly detail: string;
  readonly hint?: string;
  readonly retryable?: boolean;
  readonly request_id?: string;
}

/** Classes of errors, by what the caller should do. */
export type ErrorKind =
  | "contended"
  | "takeover-refused"
  | "lease-lost"
  | "stale"
  | "precondition"
  | "unavailable"
  | "outcome-unknown"
  | "invalid"
  | "internal";

/** Reason by which the lock server ended a lease. */
export type EndReason = "expired" | "superseded" | "released" | "revoked" | "session-ended";

/** Reason why a lease can no longer be trusted. */
export type LostReason =
  /** 0.8 of its time to live passed here without a successful renewal. */
  | { readonly reason: "deadline" }
  /** The lock server replied that the lease has ended. */
  | { readonly reason: "ended"; readonly ended: EndReason }
  /** The work did not report progress within the limit. */
  | { readonly reason: "no-progress"; readonly withinMs: number }
  /** The lease was held for the longest allowed time. */
  | { readonly reason: "held-too-long"; readonly maxMs: number };

/** Details of an error, all optional. */
export interface ErrorDetails {
  problem?: Problem | undefined;
  retryAfterMs?: number | null | undefined;
  code?: string | undefined;
  outcome?: WriteOutcome | undefined;
  /** Time that an acquire waited in the queue, in milliseconds. */
  waitedMs?: number | undefined;
  cause?: unknown;
}

/** WriteOutcome of an operation at the guard. */
export type WriteOutcome = "applied" | "not-applied" | "unknown";

/** Error of every call of this package. */
export class FencepostError extends Error {
  readonly kind: ErrorKind;
  /** The problem body of the server's reply, if it sent one; an error that is printed omits it. */
  declare readonly problem: Problem | null;
  /** The stable code of the problem, or one of this package: `released`. */
  readonly code: string | null;
  /** The HTTP status of the reply. */
  readonly status: number | null;
  /** This error with its values; `problem` has it in the server's words. */
  readonly detail: string | null;
  /** Next step for the caller. */
  readonly hint: string | null;
  /** `true` if the same request can help and cannot harm. */
  readonly retryable: boolean;
  /** Time after which a retry is worthwhile, in milliseconds, if the server said so. */
  readonly retryAfterMs: number | null;
  readonly requestId: string | null;
  /** Outcome of an operation at the guard, if stated; `unknown` if it may have been applied. */
  readonly outcome: WriteOutcome | null;

  constructor(kind: ErrorKind, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    const problem = details.problem ?? null;
    this.name = new.target.name;
    this.kind = kind;
    Object.defineProperty(this, "problem", { value: problem, enumerable: false });
    this.code = details.code ?? problem?.code ?? null;
    this.status = problem?.status ?? null;
    this.detail = problem && inWords(problem.detail);
    this.hint = problem?.hint ? hintInWords(problem.code, problem.hint, details.waitedMs) : null;
    this.retryable =
      problem?.retryable ?? ["contended", "unavailable", "outcome-unknown"].includes(kind);
    this.retryAfterMs = details.retryAfterMs ?? null;
    this.requestId = problem?.request_id ?? null;
    const stated = problem?.["outcome"] as WriteOutcome | undefined;
    this.outcome =
      details.outcome ?? stated ?? (kind === "outcome-unknown" ? ("unknown" as const) : null);
  }

  /** `true` if the lease is lost: stop the work that it protected. */
  get lost(): boolean {
    return this.kind === "lease-lost";
  }

  /** `true` if a newer holder has reached the data: stop, and never retry. */
  get stale(): boolean {
    return this.kind === "stale";
  }

  /** The token that the next token of the lock must exceed, if the guard refused one. */
  get minToken(): number | null {
    const min = this.problem?.["min_token"] ?? this.problem?.["mark"];
    return this.kind === "stale" && typeof min === "number" ? min : null;
  }
}

/** Another lease holds the lock: retry later, or wait in the queue. */
export class ContendedError extends FencepostError {
  /** Time that the acquire waited in the queue, in milliseconds. */
  readonly waitedMs: number;

  constructor(message: string, details: ErrorDetails = {}) {
    super("contended", message, details);
    this.waitedMs = details.waitedMs ?? 0;
  }

  /** The holder, if the server named it. */
  get holder(): { owner: string; token: number; held_ms: number; expires_in_ms: number } | null {
    return (this.problem?.["holder"] as never) ?? null;
  }

  /** Number of waiters, this one not included, if the server named it. */
  get queueLength(): number | null {
    return (this.problem?.["queue_length"] as number | undefined) ?? null;
  }
}

/** Another lease holds the lock and may not be taken over: wait in the queue, or stop. */
export class TakeoverRefusedError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("takeover-refused", message, details);
  }

  /** `other-owner`, `no-incarnation`, or `was-taken-over`: this process is the old one. */
  get why(): string | null {
    return (this.problem?.["why"] as string | undefined) ?? null;
  }
}

/** The lease can no longer be trusted: stop the work that it protected. */
export class LeaseLostError extends FencepostError {
  readonly reason: LostReason["reason"];
  /** The server's reason, if that ended the lease. */
  readonly ended: EndReason | null;

  constructor(message: string, why: LostReason, details?: ErrorDetails) {
    super("lease-lost", message, details);
    this.reason = why.reason;
    this.ended = why.reason === "ended" ? why.ended : null;
  }

  /** Error of a lease that is lost; `what` names the lock or the session. */
  static of(what: string, why: LostReason): LeaseLostError {
    return new LeaseLostError(`the lease on ${what} is lost: ${describe(why)}`, why);
  }
}

/** The guard has seen a higher token: stop, and never retry. */
export class StaleError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("stale", message, details);
  }

  /** The highest token that the guard has seen, if it named it. */
  get mark(): number | null {
    return (this.problem?.["mark"] as number | undefined) ?? null;
  }
}

/** `ifMatch` or `ifAbsent` did not hold: read the object again before deciding. */
export class PreconditionError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("precondition", message, details);
  }
}

/** The server or its store is unreachable and nothing was done: retry later. */
export class UnavailableError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("unavailable", message, details);
  }
}

/** The request may or may not have been applied: retry it under the same lease, or read first. */
export class OutcomeUnknownError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("outcome-unknown", message, details);
  }
}

/** The request breaks a rule: correct it. */
export class InvalidError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("invalid", message, details);
  }
}

/** A defect in the client or the server, or no Fencepost server: report it. */
export class InternalError extends FencepostError {
  constructor(message: string, details?: ErrorDetails) {
    super("internal", message, details);
  }
}

/** Describes the loss in a sentence's end. */
export function describe(why: LostReason): string {
  switch (why.reason) {
    case "deadline":
      return "0.8 of its time to live passed without a renewal";
    case "ended":
      return `the lock server has ended it: ${why.ended}`;
    case "no-progress":
      return `no progress was reported for ${why.withinMs} ms`;
    case "held-too-long":
      return `it was held for ${why.maxMs} ms, the longest allowed`;
  }
}
