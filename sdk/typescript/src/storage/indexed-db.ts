import { databases, keyRange } from "../platform.js";
import type { KeyValueStorage } from "./storage.js";

const STORE = "values";
const VERSION = 1;

/** `indexedDB`, said without the browser's types: a Node project may have none of them. */
export interface DatabaseFactory {
  /** Opens a database, as `indexedDB.open` does. */
  open(name: string, version?: number): unknown;
}

/**
 * Keeps values in the browser, in a database of this name: one name for each user of an app. Private windows and full disks may refuse
 * at any time: then a commit rejects, and the client goes on in memory.
 */
export function indexedDbStorage(name = "tidings", factory?: DatabaseFactory): KeyValueStorage {
  let opened: Promise<IDBDatabase> | undefined;
  const open = (): Promise<IDBDatabase> => {
    opened ??= openDatabase(name, (factory as IDBFactory | undefined) ?? databases(), () => (opened = undefined));
    opened.catch(() => (opened = undefined)); // the next call tries again
    return opened;
  };
  return {
    isDurable: true,
    read: async (prefix) => {
      const transaction = (await open()).transaction(STORE, "readonly");
      // U+FFFF sorts after every character that a name has.
      const range = keyRange(prefix, `${prefix}\uffff`);
      const store = transaction.objectStore(STORE);
      const [names, values] = await Promise.all([answered(store.getAllKeys(range)), answered<unknown[]>(store.getAll(range))]);
      return new Map(names.map((key, index) => [String(key), values[index]]));
    },
    commit: async (changes) => {
      const transaction = (await open()).transaction(STORE, "readwrite");
      const store = transaction.objectStore(STORE);
      for (const [key, value] of changes) {
        if (value === undefined) store.delete(key);
        else store.put(value, key);
      }
      await completed(transaction);
    },
    clear: async () => {
      const transaction = (await open()).transaction(STORE, "readwrite");
      transaction.objectStore(STORE).clear();
      await completed(transaction);
    },
    close: async () => {
      const database = await opened?.catch(() => undefined);
      opened = undefined;
      database?.close();
    },
  };
}

function openDatabase(name: string, factory: IDBFactory | undefined, onGone: () => void): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    if (!factory) throw new Error("there is no indexedDB here: give `connect` a storage of your own");
    const request = factory.open(name, VERSION);
    request.onupgradeneeded = () => void request.result.createObjectStore(STORE);
    request.onerror = () => reject(request.error ?? new Error("the database did not open"));
    request.onblocked = () => reject(new Error("another page holds an older version of the database"));
    request.onsuccess = () => {
      const database = request.result;
      // A newer version of the app, in another tab, waits for this page to let go.
      database.onversionchange = () => {
        database.close();
        onGone();
      };
      database.onclose = onGone;
      resolve(database);
    };
  });
}

function answered<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("the database did not answer"));
  });
}

function completed(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    // A full disk aborts a transaction after its requests have succeeded: the error is the transaction's.
    transaction.onabort = () => reject(transaction.error ?? new Error("the database gave the transaction up"));
    transaction.onerror = () => reject(transaction.error ?? new Error("the database refused the transaction"));
  });
}
