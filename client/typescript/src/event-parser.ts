/** Parser of server-sent events from chunks of any size. Pure. */

/** Longest accepted event, in characters: ten times a server's longest one. */
const LENGTH_MAX = 64 * 1024;

/** An event of a lock, as the server sends it; members that only some kinds have are `unknown`. */
export interface LockEvent {
  readonly [member: string]: unknown;
  /** `granted`, `released`, `expired`, `revoked`, `superseded`, `gap`, …; new ones may come. */
  readonly kind: string;
  readonly lock?: string;
  readonly lease_id?: string;
  readonly token?: number;
  readonly owner?: string;
}

/** An event with its position in the stream, if it has one. */
export interface PositionedEvent {
  readonly id: string | null;
  readonly event: LockEvent;
}

/** Unread part of the stream: text without a line end, and an incomplete event. */
export class EventParser {
  readonly #decoder = new TextDecoder("utf-8", { fatal: true });
  #rest = "";
  #id: string | null = null;
  #data = "";

  /** Returns the events that `chunk` completes. Throws if it is no stream of events. */
  push(chunk: Uint8Array): PositionedEvent[] {
    const lines = (this.#rest + this.#decoder.decode(chunk, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    const events: PositionedEvent[] = [];
    for (const line of lines) {
      const event = this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event) events.push(event);
    }
    if (this.#rest.length + this.#data.length > LENGTH_MAX) {
      throw new TypeError(`the server sent an event of more than ${LENGTH_MAX} characters`);
    }
    return events;
  }

  #line(line: string): PositionedEvent | null {
    if (line !== "") {
      this.#field(line);
      return null;
    }
    const id = this.#id;
    const data = this.#data;
    this.#id = null;
    this.#data = "";
    return data === "" ? null : { id, event: parsed(data) };
  }

  /** Reads a field. Others than `id` and `data` repeat the data, and comments are keep-alives. */
  #field(line: string): void {
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (name === "id") this.#id = value;
    if (name === "data") this.#data += value;
    if (this.#data.length > LENGTH_MAX) {
      throw new TypeError(`the server sent an event of more than ${LENGTH_MAX} characters`);
    }
  }
}

function parsed(data: string): LockEvent {
  const shown = data.slice(0, 80);
  let event: unknown;
  try {
    event = JSON.parse(data);
  } catch (cause) {
    throw new TypeError(`the server sent no valid event: ${shown}`, { cause });
  }
  if (typeof (event as LockEvent | null)?.kind !== "string") {
    throw new TypeError(`the server sent no valid event: ${shown}`);
  }
  return event as LockEvent;
}
