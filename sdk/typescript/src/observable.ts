import { report } from "./platform.js";

/**
 * A value that changes: a snapshot that keeps its identity until it changes, and a way to be told. `subscribe` and `get` need no
 * `this`, so that React takes them as they are: `useSyncExternalStore(messages.subscribe, messages.get)`.
 */
export interface Observable<T> {
  /** The value now: the same object until it changes. */
  readonly get: () => T;
  /** Calls `listener` after each change, until the returned function is called. */
  readonly subscribe: (listener: () => void) => () => void;
}

/** The owner's side of an observable. */
export class Cell<T> implements Observable<T> {
  #value: T;
  readonly #listeners = new Set<() => void>();
  readonly #onUse: ((used: boolean) => void) | undefined;

  /** `onUse` is told when the first listener comes and when the last one has gone. */
  constructor(value: T, onUse?: (used: boolean) => void) {
    this.#value = value;
    this.#onUse = onUse;
  }

  readonly get = (): T => this.#value;

  readonly subscribe = (listener: () => void): (() => void) => {
    // A function that subscribes twice is two listeners, each with its own end.
    const own = (): void => listener();
    this.#listeners.add(own);
    if (this.#listeners.size === 1) this.#onUse?.(true);
    return () => {
      if (this.#listeners.delete(own) && this.#listeners.size === 0) this.#onUse?.(false);
    };
  };

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) callSafely(listener);
  }

  get isUsed(): boolean {
    return this.#listeners.size > 0;
  }
}

/** Calls a listener of the app. One that throws is shown where the app looks for its defects, and does not stop what called it. */
export function callSafely(listener: () => void): void {
  try {
    listener();
  } catch (error) {
    report(error);
  }
}
