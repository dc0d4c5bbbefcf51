/** Problem bodies (RFC 9457), and the one place that maps them to errors. */
import {
  ContendedError,
  type EndReason,
  type ErrorDetails,
  type ErrorKind,
  type FencepostError,
  InternalError,
  InvalidError,
  LeaseLostError,
  OutcomeUnknownError,
  PreconditionError,
  type Problem,
  StaleError,
  TakeoverRefusedError,
  UnavailableError,
} from "./errors.js";
import { hintInWords, inWords } from "./words.js";

const END_REASONS = ["expired", "superseded", "released", "revoked", "session-ended"];

/** A map, because a code from outside may name a member of every object. */
const KINDS: ReadonlyMap<string, ErrorKind> = new Map<string, ErrorKind>(
  Object.entries({
    "lock-held": "contended",
    "lease-lost": "lease-lost",
    "takeover-refused": "takeover-refused",
    // Every lease of the session has ended.
    "session-ended": "lease-lost",
    "session-unknown": "lease-lost",
    // A collision calls for the same reaction as a stale token: stop, never retry.
    "stale-token": "stale",
    "token-collision": "stale",
    "precondition-failed": "precondition",
    "request-timeout": "unavailable",
    "limit-reached": "unavailable",
    "upstream-unavailable": "unavailable",
    "store-unavailable": "unavailable",
    draining: "unavailable",
    quarantined: "unavailable",
    "not-leader": "unavailable",
    "guard-unsealed": "unavailable",
    "shutting-down": "unavailable",
    "outcome-unknown": "outcome-unknown",
    internal: "internal",
  }),
);

const OF_INVALID = new Set(
  (
    "invalid-request malformed-token unauthorized bad-signature forbidden cross-origin " +
    "session-blocked wrong-lock not-found method-not-allowed lease-id-conflict " +
    "lock-kind-conflict session-conflict quarantine-conflict payload-too-large " +
    "unsupported-media-type misdirected-request op-id-reused token-required not-offered-by-store"
  ).split(" "),
);

/** Code of a problem that this package does not know, or of a reply without a problem body. */
export const UNKNOWN = "unknown";

/** The code, or {@link UNKNOWN} if it is one of a newer server. */
export function knownCode(problem: Problem): string {
  return KINDS.has(problem.code) || OF_INVALID.has(problem.code) ? problem.code : UNKNOWN;
}

/** `true` if the server promises that a retry with this code can help and cannot harm. */
export function isRetryableCode(problem: Problem): boolean {
  const kind = KINDS.get(problem.code);
  return kind === "contended" || kind === "unavailable" || kind === "outcome-unknown";
}

/**
 * Parses the problem of an error reply. A body that is no problem (from a proxy, or another program
 * on that port) becomes one made from the status, with the address and the first bytes.
 */
export function parseProblem(status: number, body: Buffer, base: string): Problem {
  try {
    const parsed = JSON.parse(body.toString("utf8")) as Problem;
    if (typeof parsed.code === "string" && typeof parsed.detail === "string") {
      return { ...parsed, status };
    }
  } catch {
    // Not JSON.
  }
  const start = JSON.stringify(body.subarray(0, 200).toString("utf8"));
  return {
    code: UNKNOWN,
    status,
    detail: `${base} replied ${status} without a problem body: ${start}`,
    hint: "Check that the address is that of a Fencepost server.",
  };
}

/** The server's reason for the end of a lease; one that is unknown here counts as superseded. */
export function endReason(problem: Problem): EndReason {
  const reason = problem["reason"];
  return END_REASONS.includes(reason as string) ? (reason as EndReason) : "superseded";
}

/** Converts a problem to the error of a call; `what` names the call. */
export function errorOf(
  problem: Problem,
  retryAfterMs: number | null,
  what: string,
  more: ErrorDetails = {},
): FencepostError {
  const { waitedMs = 0 } = more;
  const waited = waitedMs > 0 ? `; waited ${waitedMs} ms` : "";
  const hint = problem.hint ? ` (${hintInWords(problem.code, problem.hint, waitedMs)})` : "";
  const message = `${what}: ${inWords(problem.detail)}${waited}${hint}`;
  const details: ErrorDetails = { problem, retryAfterMs, ...more };
  switch (kindOf(problem)) {
    case "contended":
      return new ContendedError(message, details);
    case "takeover-refused":
      return new TakeoverRefusedError(message, details);
    case "lease-lost": {
      const ended = problem.code.startsWith("session-") ? "session-ended" : endReason(problem);
      return new LeaseLostError(message, { reason: "ended", ended }, details);
    }
    case "stale":
      return new StaleError(message, details);
    case "precondition":
      return new PreconditionError(message, details);
    case "unavailable":
      return new UnavailableError(message, details);
    case "outcome-unknown":
      return new OutcomeUnknownError(message, details);
    case "invalid":
      return new InvalidError(message, details);
    case "internal":
      return new InternalError(message, details);
  }
}

function kindOf(problem: Problem): ErrorKind {
  const kind = KINDS.get(problem.code);
  if (kind !== undefined) return kind;
  return OF_INVALID.has(problem.code) ? "invalid" : kindByStatus(problem.status);
}

/** Kind of a reply whose code is unknown: from a newer server, or from a proxy in between. */
function kindByStatus(status: number): ErrorKind {
  if (status === 423) return "contended";
  if (status === 410) return "lease-lost";
  if ([408, 429, 502, 503].includes(status)) return "unavailable";
  if (status === 504) return "outcome-unknown";
  return status >= 400 && status <= 499 ? "invalid" : "internal";
}
