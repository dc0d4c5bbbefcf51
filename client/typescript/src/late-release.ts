/** Releases that arrived after the lease had expired, though the work had ended in time. Pure. */
import { LeaseLostError } from "./errors.js";

/** End of the work under a lease or a session, as the client observed it. */
export class WorkEnd {
  /** Moment until which the lease was trusted when its work ended; `null` if it was lost. */
  readonly #deadlineMs: number | null;

  constructor(deadlineMs: number | null) {
    this.#deadlineMs = deadlineMs;
  }

  /**
   * `true` if `refusal` shows that the lease expired, and only after its work had ended. A refusal
   * that arrives before the deadline has another cause (a stepped clock, a server that lost its
   * memory), and the work may have overlapped with another holder's.
   */
  excuses(refusal: unknown, nowMs: number): boolean {
    if (!(refusal instanceof LeaseLostError) || this.#deadlineMs === null) return false;
    return hasExpired(refusal) && this.#deadlineMs <= nowMs;
  }
}

/** The refusal of a lease does not say how its session ended; the refusal of the session does. */
function hasExpired({ ended, problem }: LeaseLostError): boolean {
  if (ended === "expired") return true;
  if (ended !== "session-ended" || problem === null) return false;
  if (problem.code === "lease-lost") return true;
  return (
    problem.code === "session-ended" &&
    (problem["reason"] === "expired" || problem["reason"] === "blocked")
  );
}
