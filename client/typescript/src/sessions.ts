/** The lock server's session API, one method a call. */
import { LeaseLostError } from "./errors.js";
import { CALL_MS, type CallOptions, type Sending, unwrap } from "./locks.js";
import { untilSettled } from "./sent-change.js";
import { type Endpoint, Failure } from "./transport.js";
import { anyObject, sessionReply, type SessionReply } from "./wire.js";

/** Time for which an end is retried, in milliseconds; after it the session expires by itself. */
const END_MS = 5000;

/** Body of the begin of a session. */
export interface SessionRequest {
  ttl_ms: number;
  owner: string;
  session_id: string;
  metadata?: unknown;
}

/** The session API, for tools; programs that hold locks use `client.session`. */
export class Sessions {
  readonly #endpoint: Endpoint;

  /** @internal */
  constructor(endpoint: Endpoint) {
    this.#endpoint = endpoint;
  }

  /** @internal Begins a session without retries. */
  beginOnce(body: SessionRequest, sending: Sending): Promise<SessionReply | Failure> {
    return this.#endpoint.post({ path: "/v1/sessions", ...sending }, body, sessionReply);
  }

  /** @internal Sends one heartbeat without retries. */
  heartbeatOnce(id: string, sending: Sending): Promise<SessionReply | Failure> {
    const path = `/v1/sessions/${id}/heartbeat`;
    return this.#endpoint.post({ path, ...sending }, {}, (json) => {
      const reply = sessionReply(json);
      if (reply.session_id !== id) throw new TypeError(`it is about session ${reply.session_id}`);
      return reply;
    });
  }

  /** Returns a live session. */
  async show(id: string): Promise<SessionReply> {
    const path = `/v1/sessions/${encodeURIComponent(id)}`;
    const request = { method: "GET", path, timeoutMs: CALL_MS } as const;
    return unwrap(await this.#endpoint.json(request, sessionReply), `show session ${id}`, "reads");
  }

  /** Ends a session and its leases; retries for up to 5 s if no reply arrives. */
  async end(id: string, { signal }: CallOptions = {}): Promise<void> {
    const path = `/v1/sessions/${encodeURIComponent(id)}`;
    const request = { method: "DELETE", path, timeoutMs: END_MS, signal } as const;
    const send = () => this.#endpoint.json(request, anyObject<object>);
    await untilSettled(`end session ${id}`, END_MS, send, wasEndedByItsClient, signal);
  }

  /** @internal Ends a session that was given up and expires within `ttlMs`. Never rejects. */
  async endQuietly(id: string, ttlMs: number, log: (why: string) => void): Promise<void> {
    try {
      await this.end(id, { signal: AbortSignal.timeout(ttlMs) });
    } catch (error) {
      if (!(error instanceof LeaseLostError)) log(`session ${id} was not ended: ${String(error)}`);
    }
  }
}

function wasEndedByItsClient({ problem }: Failure): boolean {
  return problem?.code === "session-ended" && problem["reason"] === "ended";
}

/** `true` if the session has ended or is unknown. */
export function isSessionOver(failure: Failure): boolean {
  return failure.isRefusal("session-ended") || failure.isRefusal("session-unknown");
}
