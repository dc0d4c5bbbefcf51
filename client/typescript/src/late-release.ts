/** Releases without a timely reply, though the work had ended in time. Pure. */
import { LeaseLostError } from "./errors.js";

/** End of the work under a lease or a session, as the client observed it. */
export class WorkEnd {
  /** Moment until which the lease was trusted when its work ended; `null` if it was lost. */
  readonly #deadlineMs: number | null;

  constructor(deadlineMs: number | null) {
    this.#deadlineMs = deadlineMs;
  }

  /**
   * `true` if `refusal` shows that the lease ended by its time or by this release, and only after
   * its work had ended. A first refusal that arrives before the deadline has another cause (a
   * takeover, a stepped clock, a server that lost its memory), and the work may have overlapped
   * with another holder's.
   */
  excuses(refusal: unknown, nowMs: number): boolean {
    if (!(refusal instanceof LeaseLostError) || this.#deadlineMs === null) return false;
    const mayBeDone = refusal.outcome === "unknown";
    if (!isByTimeOrRelease(refusal, mayBeDone)) return false;
    return mayBeDone || this.#deadlineMs <= nowMs;
  }
}

function isByTimeOrRelease(refusal: LeaseLostError, mayBeDone: boolean): boolean {
  const { reason, ended, problem } = refusal;
  // By the clock, if the release was stopped when the lease had expired.
  if (reason === "deadline" || ended === "expired") return true;
  // The server has forgotten a release, because others have held the lock since.
  if (ended === "superseded") return mayBeDone;
  if (ended !== "session-ended" || problem === null) return false;
  if (problem.code === "session-unknown") return mayBeDone;
  // The refusal of a lease does not say how its session ended; that of the session does.
  if (problem.code === "lease-lost") return true;
  return (
    problem.code === "session-ended" &&
    (problem["reason"] === "expired" || problem["reason"] === "blocked")
  );
}
