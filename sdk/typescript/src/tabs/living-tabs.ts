// Which tabs live: each holds a lock of its own for as long as it does, and the tab with the connection waits for those of the others.
// The browser gives a lock free however its tab ends.
import type { Locks } from "./browser.js";

export interface LivingTabsOptions {
  /** Of all tabs that share the connection. */
  readonly name: string;
  readonly locks: Locks;
  /** Aborted when this tab closes. */
  readonly signal: AbortSignal;
  readonly onGone: (tab: string) => void;
}

export class LivingTabs {
  readonly #options: LivingTabsOptions;
  readonly #watched = new Set<string>();

  constructor(options: LivingTabsOptions) {
    this.#options = options;
  }

  /** This tab lives until it is closed. */
  live(tab: string): void {
    const { signal } = this.#options;
    this.#request(tab, () => new Promise((resolve) => signal.addEventListener("abort", () => resolve())));
  }

  /** Tells once when this tab is gone. */
  watch(tab: string): void {
    if (this.#watched.has(tab)) return;
    this.#watched.add(tab);
    this.#request(tab, () => {
      this.#watched.delete(tab);
      this.#options.onGone(tab);
      return Promise.resolve();
    });
  }

  #request(tab: string, held: () => Promise<void>): void {
    const { name, locks, signal } = this.#options;
    // Without the lock nothing is told; a tab that leads later finds what is left in the storage.
    locks.request(`${name} tab ${tab}`, { signal }, held).catch(() => undefined);
  }
}
