/**
 * Where a client keeps what outlives its page: names and values that a structured clone can copy. A commit is kept whole or not at
 * all, so that the cursor never says more than the messages beside it.
 */
export interface KeyValueStorage {
  /** Whether the values outlive the page. */
  readonly isDurable: boolean;
  /** All values whose names begin so. */
  read(prefix: string): Promise<ReadonlyMap<string, unknown>>;
  /** Keeps values, and removes those that are undefined. */
  commit(changes: ReadonlyMap<string, unknown>): Promise<void>;
  /** Removes everything. */
  clear(): Promise<void>;
  /** Lets go of what it holds open. */
  close(): Promise<void>;
}
