/**
 * `fencepost/redis`: clients of the guard's Redis port that follow a lease.
 *
 * The drivers are named by their shape: this module imports neither.
 */
import { type LeaseCredential, LeaseConnections } from "./connections.js";

export type { Driver, LeaseCredential } from "./connections.js";
export { LeaseConnections } from "./connections.js";

/** What a client of node-redis needs, so that it sends nothing again after its connection broke. */
export interface NodeRedisOptions extends LeaseCredential {
  readonly disableOfflineQueue: true;
}

/** What a client of ioredis needs for that. */
export interface IoredisOptions extends LeaseCredential {
  readonly autoResendUnfulfilledCommands: false;
  readonly maxRetriesPerRequest: 0;
}

/** A client or a pool of node-redis. */
export interface NodeRedisClient {
  connect(): Promise<unknown>;
  destroy(): void;
  on(event: "error", listener: (error: Error) => void): unknown;
}

/** A client of ioredis. */
export interface IoredisClient {
  disconnect(reconnect?: boolean): void;
  on(event: "error", listener: (error: Error) => void): unknown;
}

/** `true` if the guard refused a token (`FENCED`, `COLLISION`). */
export function isFenced(error: unknown): boolean {
  if (error instanceof AggregateError) return error.errors.some(isFenced);
  return error instanceof Error && /^(FENCED|COLLISION)\b/.test(error.message);
}

/**
 * Connections of node-redis. `create` makes a client or a pool that is not connected yet, with
 * these options among its own.
 */
export function nodeRedis<C extends NodeRedisClient>(
  create: (options: NodeRedisOptions) => C,
): LeaseConnections<C> {
  return new LeaseConnections<C>({
    async open(credential) {
      const client = create({ ...credential, disableOfflineQueue: true });
      // Every command that fails rejects; without a listener the event would end the process.
      client.on("error", () => {});
      await client.connect();
      return client;
    },
    close: (client) => client.destroy(),
    isRefusal: isFenced,
  });
}

/** Connections of ioredis. `create` makes a client with these options among its own. */
export function ioredis<C extends IoredisClient>(
  create: (options: IoredisOptions) => C,
): LeaseConnections<C> {
  return new LeaseConnections<C>({
    open(credential) {
      const noRetries = { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 } as const;
      const client = create({ ...credential, ...noRetries });
      client.on("error", () => {});
      return client;
    },
    close: (client) => client.disconnect(),
    isRefusal: isFenced,
  });
}
