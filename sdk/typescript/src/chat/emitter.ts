import { callSafely } from "../observable.js";
import type { TidingsEvents } from "../tidings.js";

type Listeners = { [Name in keyof TidingsEvents]: Set<(value: TidingsEvents[Name]) => void> };

/** Tells the app's listeners. */
export class Emitter {
  readonly #listeners: Listeners = {
    message: new Set(), typing: new Set(), signal: new Set(), read: new Set(), membership: new Set(), assignment: new Set(), presence: new Set(),
    popup: new Set(), push: new Set(), reset: new Set(), skipped: new Set(), storage: new Set(), error: new Set(),
  };

  on<Name extends keyof TidingsEvents>(event: Name, listener: (value: TidingsEvents[Name]) => void): () => void {
    const own = (value: TidingsEvents[Name]): void => listener(value);
    const listeners: Set<(value: TidingsEvents[Name]) => void> = this.#listeners[event];
    listeners.add(own);
    return () => listeners.delete(own);
  }

  emit<Name extends keyof TidingsEvents>(event: Name, value: TidingsEvents[Name]): void {
    const listeners: Set<(value: TidingsEvents[Name]) => void> = this.#listeners[event];
    for (const listener of [...listeners]) callSafely(() => listener(value));
  }
}
