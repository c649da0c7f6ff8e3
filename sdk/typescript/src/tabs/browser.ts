// What of the browser the tabs stand on, and what stands in for it in tests.
import { isPageSeen, pageLocks, tabChannels } from "../platform.js";

export interface Channel {
  postMessage(message: unknown): void;
  onmessage: ((event: never) => void) | null;
  close(): void;
}

/** The part of `navigator.locks` that is used. With `steal` whoever holds the lock loses it: its request rejects. */
export interface Locks {
  request(name: string, options: { readonly signal: AbortSignal } | { readonly steal: true }, held: () => Promise<void>): Promise<unknown>;
}

export interface TabSupport {
  readonly locks: Locks;
  readonly openChannel: (name: string) => Channel;
  /** Whether a person can see this tab. */
  readonly isInFront: () => boolean;
}

/** What this page has; undefined: tabs cannot share a connection (an insecure page has no locks). */
export function tabSupport(): TabSupport | undefined {
  const [locks, openChannel] = [pageLocks(), tabChannels()];
  return locks && openChannel && { locks, openChannel, isInFront: isPageSeen };
}
