/** Events of locks: a stream from the lock server that reconnects and resumes. */
import type { IncomingMessage } from "node:http";
import { ChildAbort, firstWithin } from "./abort.js";
import { sleep } from "./clock.js";
import { type FencepostError, InternalError, UnavailableError } from "./errors.js";
import { EventParser, type LockEvent } from "./event-parser.js";
import { random } from "./ids.js";
import { checkLockName } from "./names.js";
import { checkOptions, type TypesOf } from "./options.js";
import { pauseMs } from "./timing.js";
import { type Endpoint, Failure } from "./transport.js";

/** Time-out of opening a stream, in milliseconds. */
const BEGIN_MS = 10_000;
/** Longest silence of a live server, which sends at least a comment every 15 s. */
const SILENCE_MS = 45_000;

/** Item of a stream of events. */
export type StreamItem =
  /** Something has happened to a lock. `id` is the argument of `after` to resume from here. */
  | { readonly type: "event"; readonly id: string | null; readonly event: LockEvent }
  /** The connection broke and is retried; no events arrive until `resumed`. */
  | { readonly type: "broken"; readonly error: FencepostError }
  /** The stream continues; if events are missing, the next one is of the kind `gap`. */
  | { readonly type: "resumed" };

/** Options of a stream. */
export interface EventOptions {
  /** Locks whose names begin so; with an empty prefix session events too. */
  prefix?: string;
  /** One lock, in place of `prefix`. */
  lock?: string;
  /** Starts after this id of an earlier stream; by default now. */
  after?: string;
  /** Ends the stream: its iterator then rejects with the reason. */
  signal?: AbortSignal;
}

const EVENT_OPTIONS: TypesOf<EventOptions> = {
  prefix: "string",
  lock: "string",
  after: "string",
  signal: "signal",
};

/**
 * Stream of the events of locks, for `for await`; leaving the loop closes it.
 *
 * Events inform people and dashboards. They may arrive late: base no decision on them that a late
 * event would make wrong; use tokens for that.
 */
export class EventStream implements AsyncIterableIterator<StreamItem>, AsyncDisposable {
  readonly #endpoint: Endpoint;
  readonly #path: string;
  readonly #abort: ChildAbort;
  #after: string | null;
  #body: AsyncIterator<Buffer> | null = null;
  #message: IncomingMessage | null = null;
  #parser = new EventParser();
  #items: StreamItem[] = [];
  #failures = 0;

  /** @internal Opens the stream. */
  static async open(endpoint: Endpoint, options: EventOptions): Promise<EventStream> {
    checkOptions("events", options, EVENT_OPTIONS);
    const stream = new EventStream(endpoint, options);
    await stream.#connect();
    return stream;
  }

  private constructor(endpoint: Endpoint, options: EventOptions) {
    const { prefix = "", lock, after = null, signal } = options;
    const query = new URLSearchParams(
      lock === undefined ? { prefix } : { lock: checkLockName(lock) },
    );
    this.#endpoint = endpoint;
    this.#path = `/v1/events?${query}`;
    this.#after = after;
    this.#abort = new ChildAbort(signal);
  }

  /** Position of the stream: the argument of `after` to resume from here. */
  get lastId(): string | null {
    return this.#after;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /**
   * The next item; waits without a limit, and retries an unreachable server about every second.
   * Rejects if the server refuses to resume, or sends something that is no event.
   */
  async next(): Promise<IteratorResult<StreamItem, undefined>> {
    for (;;) {
      this.#abort.signal.throwIfAborted();
      const item = this.#items.shift();
      if (item) {
        if (item.type === "event") this.#after = item.id ?? this.#after;
        return { done: false, value: item };
      }
      if (this.#body === null) {
        await this.#connectAgain();
        return { done: false, value: { type: "resumed" } };
      }
      await this.#read(this.#body);
    }
  }

  /** Closes the stream; as leaving the loop does. */
  close(): void {
    this.#abort.drop();
    this.#disconnect();
  }

  async return(): Promise<IteratorResult<StreamItem, undefined>> {
    this.close();
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #read(body: AsyncIterator<Buffer>): Promise<void> {
    let why: string;
    try {
      const chunk = await firstWithin([body.next()], SILENCE_MS, this.#abort.signal);
      if (chunk !== null && chunk.done !== true) {
        const events = this.#parser.push(chunk.value);
        this.#items = events.map((event) => ({ type: "event", ...event }));
        return;
      }
      why = chunk === null ? `the server was silent for ${SILENCE_MS} ms` : "the server ended it";
    } catch (error) {
      this.#disconnect();
      this.#abort.signal.throwIfAborted();
      const message = error instanceof Error ? error.message : String(error);
      if (error instanceof TypeError) throw new InternalError(`events: ${message}`);
      why = `the connection broke: ${message}`;
    }
    this.#disconnect();
    const error = new UnavailableError(`events: ${why}`);
    this.#items = [{ type: "broken", error }];
  }

  #disconnect(): void {
    this.#message?.destroy();
    this.#message = null;
    this.#body = null;
    this.#parser = new EventParser();
  }

  async #connect(): Promise<void> {
    const headers = {
      accept: "text/event-stream",
      ...(this.#after !== null && { "last-event-id": this.#after }),
    };
    const { signal } = this.#abort;
    const opened = await this.#endpoint.open(
      { method: "GET", path: this.#path, headers, timeoutMs: BEGIN_MS, signal },
      "text/event-stream",
    );
    if (opened instanceof Failure) throw opened.toError("events", "reads");
    // Between two reads an error of the connection has no listener.
    opened.on("error", () => {});
    this.#message = opened;
    this.#body = opened[Symbol.asyncIterator]();
    this.#failures = 0;
  }

  async #connectAgain(): Promise<void> {
    for (;;) {
      await sleep(pauseMs(this.#failures + 1, random()), this.#abort.signal);
      try {
        await this.#connect();
        return;
      } catch (error) {
        if (!isPassing(error)) throw error;
        this.#failures += 1;
      }
    }
  }
}

/** `true` if a retry may succeed. */
export function isPassing(error: unknown): boolean {
  const { kind } = error as Partial<FencepostError>;
  return kind === "unavailable" || kind === "outcome-unknown";
}
