import { useLayoutEffect, useState } from "preact/hooks";
import type { Observable } from "@tidings/client";

/** A value of the page that changes. */
export class Cell<T> implements Observable<T> {
  #value: T;
  readonly #listeners = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  readonly get = (): T => this.#value;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  };

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) listener();
  }
}

/** The value now; the component is drawn again when it changes. */
export function useObservable<T>(observable: Observable<T>): T {
  const [, setDrawn] = useState<T>(observable.get);
  useLayoutEffect(() => {
    const look = (): void => setDrawn(() => observable.get());
    const end = observable.subscribe(look);
    look(); // it may have changed between drawing and now
    return end;
  }, [observable]);
  return observable.get();
}
