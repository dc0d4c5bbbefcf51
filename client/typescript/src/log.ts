/** Receiver of what happens in the background: `warn` for people, `debug` for the rest. */
export type Log = (level: "warn" | "debug", message: string) => void;

/** The default: warnings of the process (`process.on("warning")`), nothing else. */
export const defaultLog: Log = (level, message) => {
  if (level === "warn") process.emitWarning(message, "FencepostWarning");
};

/** Work that continues after its call has returned: releases of grants that are not used. */
export class Background {
  readonly #underWay = new Set<Promise<void>>();

  /** Adds work that never rejects. */
  add(work: Promise<void>): void {
    this.#underWay.add(work);
    void work.finally(() => this.#underWay.delete(work));
  }

  /** Waits until all work has ended. */
  async drained(): Promise<void> {
    while (this.#underWay.size > 0) await Promise.all(this.#underWay);
  }
}
