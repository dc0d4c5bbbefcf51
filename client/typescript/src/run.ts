/** Work under a lease: cancelled by a signal at the loss, and followed by the release. */
import { ChildAbort } from "./abort.js";
import { InvalidError, LeaseLostError } from "./errors.js";
import { type Holding, releaseOrWarn } from "./held-grant.js";
import type { Background, Log } from "./log.js";

/** What the end of the work uses. */
export interface RunContext {
  readonly background: Background;
  readonly log: Log;
}

/** Longest timer of Node, in milliseconds. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/**
 * Runs `work` under `lease`, then releases it. `signal` of the work is aborted when the lease is
 * lost, or with `caller`. Waits until the work has settled, also after a loss: work that ignores
 * its signal is not cut off, and the lock may be another's meanwhile.
 *
 * Rejects with the work's own error if it threw one; else with `LeaseLostError` if the lease was
 * lost, even if the work ended well, because its unfenced effects may overlap with another
 * holder's. The process is kept alive while the work runs.
 */
export async function runUnder<L extends Holding, T>(
  lease: L,
  work: (lease: L, signal: AbortSignal) => T | Promise<T>,
  caller: AbortSignal | undefined,
  context: RunContext,
): Promise<T> {
  const abort = new ChildAbort(lease.signal, caller);
  const alive = setInterval(() => {}, TIMER_MS_MAX);
  let value: T;
  try {
    value = await work(lease, abort.signal);
  } catch (error) {
    const lost = lossOf(lease);
    const released = giveUp(lease, context);
    if (!lost) await released;
    throw lost && isCancellation(error, abort.signal) ? lost : error;
  } finally {
    clearInterval(alive);
    abort.unlink();
  }
  const lost = lossOf(lease);
  if (lost) {
    void giveUp(lease, context);
    throw lost;
  }
  if (isHeld(lease)) await releaseOrWarn(lease, context.log);
  return value;
}

/** The loss of the lease, as the clock says now; `null` if it is live or was released. */
function lossOf(lease: Holding): LeaseLostError | null {
  try {
    lease.check();
  } catch (error) {
    if (error instanceof LeaseLostError) return error;
  }
  return null;
}

/** `false` if the work has released the lease itself. */
function isHeld(lease: Holding): boolean {
  try {
    lease.check();
  } catch (error) {
    return !(error instanceof InvalidError);
  }
  return true;
}

/** Releases after the work has failed: no failure of the release masks that. Never rejects. */
function giveUp(lease: Holding, { background, log }: RunContext): Promise<void> {
  if (!isHeld(lease)) return Promise.resolve();
  const released = lease.release().catch((error: unknown) => {
    log("debug", `${lease.lock} was not released after its work had failed: ${String(error)}`);
  });
  background.add(released);
  return released;
}

/** `true` if the work ended because its signal was aborted, and not for a reason of its own. */
function isCancellation(error: unknown, signal: AbortSignal): boolean {
  if (!signal.aborted) return false;
  return error === signal.reason || (error instanceof Error && error.name === "AbortError");
}
