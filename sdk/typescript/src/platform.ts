// The one place that asks what the runtime has beside the language.
//
// A browser's page has all of it, and of a page alone is it true that it has a window: React Native has a `window` without a document,
// Node and Deno have `localStorage` or Web Locks that no page shares, workers have a location and no document. So each part is asked for
// by itself, when it is used, and is undefined where it is missing. No other file names a global of browsers.
import type { Channel, Locks } from "./tabs/browser.js";
import type { SocketLike, WebSocketConstructor } from "./session/socket.js";
import type { ServiceWorkers } from "./chat/offline-push.js";

interface Listening {
  addEventListener?(name: string, listener: () => void): void;
  removeEventListener?(name: string, listener: () => void): void;
}

/** What is used of a `document`. */
interface Page extends Listening {
  readonly visibilityState?: string;
}

/** What is used of the global object: every part may be missing. */
interface Globals extends Listening {
  readonly document?: Page;
  readonly location?: { readonly href?: string };
  readonly localStorage?: WebStorage;
  readonly sessionStorage?: WebStorage;
  readonly indexedDB?: IDBFactory;
  readonly navigator?: { readonly locks?: Locks; readonly serviceWorker?: ServiceWorkers };
  readonly BroadcastChannel?: new (name: string) => Channel;
  readonly WebSocket?: unknown;
  readonly fetch?: typeof fetch;
  readonly Response?: { readonly prototype: object };
  readonly crypto?: { getRandomValues?(bytes: Uint8Array<ArrayBuffer>): Uint8Array };
  readonly TextDecoder?: typeof TextDecoder;
  readonly structuredClone?: (value: unknown) => unknown;
  readonly reportError?: (error: unknown) => void;
}

/** What is used of `localStorage`. */
export interface WebStorage {
  getItem(name: string): string | null;
  setItem(name: string, value: string): void;
}

const globals = (): Globals => globalThis as unknown as Globals;

/** Whether there is a document: then a person may look at it, and other tabs of its origin may run. */
export function hasPage(): boolean {
  return globals().document?.addEventListener !== undefined;
}

/** Whether a person can see the page; where there is none, nothing says otherwise. */
export function isPageSeen(): boolean {
  return globals().document?.visibilityState !== "hidden";
}

/** Calls `listener` whenever the page comes to the front or goes from it. */
export function onPageSeen(listener: () => void): () => void {
  return listen(globals().document, "visibilitychange", listener);
}

/** Calls `listener` when the device is back in a network, where the runtime tells: pages and workers. */
export function onNetwork(listener: () => void): () => void {
  return listen(globals(), "online", listener);
}

function listen(target: Listening | undefined, name: string, listener: () => void): () => void {
  if (!target?.addEventListener) return () => undefined;
  target.addEventListener(name, listener);
  return () => target.removeEventListener?.(name, listener);
}

/** The page's address, to which others are relative. */
export function ownAddress(): string | undefined {
  return globals().location?.href;
}

/** A page's storage. It may be refused (a frame without an origin), and any call of it may throw. */
export function webStorage(place: "localStorage" | "sessionStorage"): WebStorage | undefined {
  try {
    return hasPage() ? globals()[place] : undefined;
  } catch {
    return undefined;
  }
}

export function databases(): IDBFactory | undefined {
  return globals().indexedDB;
}

/** A range of names in a database: whoever has a database has ranges. */
export function keyRange(first: string, last: string): IDBKeyRange {
  return IDBKeyRange.bound(first, last);
}

/** Absent in a page without HTTPS, too. */
export function pageLocks(): Locks | undefined {
  return hasPage() ? globals().navigator?.locks : undefined;
}

/** Opens a channel to the other tabs. */
export function tabChannels(): ((name: string) => Channel) | undefined {
  const { BroadcastChannel } = globals();
  return hasPage() && BroadcastChannel ? (name) => new BroadcastChannel(name) : undefined;
}

export function serviceWorkers(): ServiceWorkers | undefined {
  return globals().navigator?.serviceWorker;
}

export function ownWebSocket(): WebSocketConstructor | undefined {
  const { WebSocket } = globals();
  return typeof WebSocket === "function" ? (WebSocket as new (url: string) => SocketLike) : undefined;
}

export function ownFetch(): typeof fetch | undefined {
  return globals().fetch;
}

/** Whether `fetch` hands a body on as it comes. React Native's answers when all of it is there, which of an event stream is never. */
export function streamsBodies(): boolean {
  const { Response } = globals();
  return Response !== undefined && "body" in Response.prototype;
}

/**
 * Random bytes for names that must differ, not for secrets: React Native has no `crypto`, and a page without HTTPS has
 * `crypto.getRandomValues`, but no `crypto.randomUUID`.
 */
export function randomBytes(count: number): Uint8Array {
  const bytes = new Uint8Array(count);
  const { crypto } = globals();
  if (crypto?.getRandomValues) return crypto.getRandomValues(bytes);
  return bytes.map(() => Math.floor(Math.random() * 256));
}

/** The text of UTF-8. */
export function textOfBytes(bytes: Uint8Array): string {
  const { TextDecoder } = globals();
  if (TextDecoder) return new TextDecoder().decode(bytes);
  return decodeURIComponent(Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join(""));
}

/** A copy that shares nothing with the value. */
export function copyOf(value: unknown): unknown {
  const { structuredClone } = globals();
  return structuredClone ? structuredClone(value) : JSON.parse(JSON.stringify(value));
}

/** Shows an error where the app looks for its defects: Node has no such place, and there it is an uncaught exception. */
export function report(error: unknown): void {
  const { reportError } = globals();
  if (reportError) reportError(error);
  else queueMicrotask(() => {
    throw error;
  });
}
