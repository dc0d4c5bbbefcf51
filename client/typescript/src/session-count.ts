/** Comparison of the server's count of a session's leases with the client's. Pure. */

/** The client's count at the moment of a heartbeat. */
export interface ExpectedCount {
  readonly count: number;
  readonly epoch: number;
}

/** Difference of the counts; `epoch` numbers the changes of the client's. */
interface CountDifference {
  readonly epoch: number;
  readonly surplus: number;
}

/** Decides when a difference means that a lease may be lost. */
export class LeaseCount {
  #epoch = 0;
  #last: CountDifference = { epoch: 0, surplus: 0 };
  #explained: CountDifference = { epoch: 0, surplus: 0 };

  /** Records that the client's leases or requests have changed. */
  change(): void {
    this.#epoch += 1;
  }

  expect(count: number): ExpectedCount {
    return { count, epoch: this.#epoch };
  }

  /** `true` if the server's count differs, and that was not explained before. */
  isMismatch(counted: number, expected: ExpectedCount): boolean {
    this.#last = { epoch: expected.epoch, surplus: counted - expected.count };
    const isSameEpoch = this.#explained.epoch === expected.epoch;
    return this.#last.surplus !== (isSameEpoch ? this.#explained.surplus : 0);
  }

  /** The difference seen last, for {@link explain}. */
  last(): CountDifference {
    return this.#last;
  }

  /** Records that every lease is live although the server counts more: others use the session. */
  explain(seen: CountDifference): void {
    if (seen.epoch === this.#epoch && seen.surplus > 0) this.#explained = seen;
  }
}
