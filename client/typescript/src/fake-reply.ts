/** Replies of the fake server. */

/** A successful reply; a body that is no Buffer is sent as JSON. */
export interface FakeReply {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
}

/** A refusal, which becomes a problem body. */
export class FakeRefusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly members: Readonly<Record<string, unknown>> = {},
    readonly headers: Readonly<Record<string, string>> = {},
  ) {
    super(detail);
  }
}
