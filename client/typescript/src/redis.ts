/**
 * `fencepost/redis`: clients of the guard's Redis port that follow a lease.
 *
 * The drivers are named by their shape: this module imports neither.
 */
import { type LeaseCredential, LeaseConnections } from "./connections.js";

export type { Driver, LeaseCredential } from "./connections.js";
export { LeaseConnections } from "./connections.js";

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
 * Connections of node-redis. `create` makes a client or a pool that is not connected yet, with the
 * credential among its options, and `disableOfflineQueue: true`: a write must not be sent again
 * after its connection broke.
 */
export function nodeRedis<C extends NodeRedisClient>(
  create: (credential: LeaseCredential) => C,
): LeaseConnections<C> {
  return new LeaseConnections<C>({
    async open(credential) {
      const client = create(credential);
      // Every command that fails rejects; without a listener the event would end the process.
      client.on("error", () => {});
      await client.connect();
      return client;
    },
    close: (client) => client.destroy(),
    isRefusal: isFenced,
  });
}

/**
 * Connections of ioredis. `create` makes a client with the credential among its options, with
 * `autoResendUnfulfilledCommands: false` and `maxRetriesPerRequest: 0`.
 */
export function ioredis<C extends IoredisClient>(
  create: (credential: LeaseCredential) => C,
): LeaseConnections<C> {
  return new LeaseConnections<C>({
    open(credential) {
      const client = create(credential);
      client.on("error", () => {});
      return client;
    },
    close: (client) => client.disconnect(),
    isRefusal: isFenced,
  });
}
