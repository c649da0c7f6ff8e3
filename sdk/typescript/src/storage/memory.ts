import { copyOf } from "../platform.js";
import type { KeyValueStorage } from "./storage.js";

/** Keeps values as long as the page lives: for tests, and in place of a storage that failed. */
export function memoryStorage(): KeyValueStorage {
  const values = new Map<string, unknown>();
  return {
    isDurable: false,
    read: (prefix) => Promise.resolve(new Map([...values].filter(([name]) => name.startsWith(prefix)))),
    commit: (changes) => {
      for (const [name, value] of changes) {
        if (value === undefined) values.delete(name);
        else values.set(name, copyOf(value));
      }
      return Promise.resolve();
    },
    clear: () => {
      values.clear();
      return Promise.resolve();
    },
    close: () => Promise.resolve(),
  };
}
