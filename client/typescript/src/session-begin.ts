/** The requests that begin a session. */
import { mayBeGranted, Plan } from "./acquire-plan.js";
import { nowMs, sleep } from "./clock.js";
import { UnavailableError } from "./errors.js";
import type { GrantContext } from "./grants.js";
import { random, randomId } from "./ids.js";
import { checkTimes, type WaitOptions } from "./lock-spec.js";
import { CALL_MS } from "./locks.js";
import { SentChange } from "./sent-change.js";
import { isSessionOver, type SessionRequest, type Sessions } from "./sessions.js";
import { Window } from "./timing.js";
import { Failure } from "./transport.js";
import type { SessionReply } from "./wire.js";

/** A session, and the window in which it is trusted. */
export interface Begun {
  readonly reply: SessionReply;
  readonly window: Window;
}

/** What the attempts use. */
export interface BeginContext extends GrantContext {
  readonly sessions: Sessions;
}

/** Begins a session; one that it may have begun and does not return is ended in the background. */
export async function beginSession(
  context: BeginContext,
  request: Omit<SessionRequest, "session_id">,
  options: WaitOptions,
): Promise<Begun> {
  const plan = new Plan(nowMs(), checkTimes(options));
  const { signal } = options;
  const sent = new SentChange();
  let sessionId = randomId();
  let mayBeBegun = false;
  try {
    for (;;) {
      mayBeBegun = true;
      const begun = await attempt(context, { ...request, session_id: sessionId }, signal);
      if (!(begun instanceof Failure)) {
        mayBeBegun = false;
        return begun;
      }
      mayBeBegun = sent.isUnknown || mayBeGranted(begun);
      // A fresh id for a session that ended before it was confirmed.
      const isOver = isSessionOver(begun);
      const step = plan.after(isOver ? TOO_LATE : begun, nowMs(), random());
      if (step.do === "fail") throw sent.error("begin a session", isOver ? TOO_LATE : begun);
      sent.record(begun);
      if (isOver) sessionId = randomId();
      await sleep(step.pauseMs, signal);
    }
  } finally {
    if (mayBeBegun) {
      const log = (why: string) => context.log("debug", why);
      context.background.add(context.sessions.endQuietly(sessionId, request.ttl_ms, log));
    }
  }
}

const TOO_LATE = Failure.unusable(
  new UnavailableError(
    "begin a session: replies take too long for its time to live; retry, or ask for a longer one",
  ),
);

/** Sends one attempt; a session whose window is worn gets a heartbeat before it is used. */
async function attempt(
  { sessions }: BeginContext,
  body: SessionRequest,
  signal: AbortSignal | undefined,
): Promise<Begun | Failure> {
  const windowOf = (sentAtMs: number, reply: SessionReply) =>
    new Window(sentAtMs, Math.min(reply.expires_in_ms, body.ttl_ms));
  let sentAtMs = nowMs();
  const reply = await sessions.beginOnce(body, { timeoutMs: CALL_MS, signal });
  if (reply instanceof Failure) return reply;
  const window = windowOf(sentAtMs, reply);
  if (!window.isWorn(nowMs())) return { reply, window };
  sentAtMs = nowMs();
  const timeoutMs = Math.min(CALL_MS, body.ttl_ms * 2);
  const beaten = await sessions.heartbeatOnce(body.session_id, { timeoutMs, signal });
  if (beaten instanceof Failure) return beaten;
  const renewed = windowOf(sentAtMs, beaten);
  return renewed.isLive(nowMs()) ? { reply: beaten, window: renewed } : TOO_LATE;
}
