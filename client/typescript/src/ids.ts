/** Random ids and numbers; no other module generates them. */
import { randomInt, randomUUID } from "node:crypto";

/** A fresh id of a lease, a session or an operation: a random UUID. */
export function randomId(): string {
  return randomUUID();
}

/** A random integer for the jitter of a pause. */
export function random(): number {
  return randomInt(2 ** 32);
}

const incarnation = randomUUID().replaceAll("-", "");

/** Incarnation of this process, shared by all its clients. */
export function incarnationOfThisProcess(): string {
  return incarnation;
}
