// Locks and channels of one browser whose tabs can be killed.
import type { Channel, TabSupport } from "../../src/tabs/browser.js";

interface Queued {
  readonly tab: FakeTab;
  readonly held: () => Promise<void>;
  readonly done: () => void;
}

export class FakeBrowser {
  readonly #queues = new Map<string, Queued[]>();
  readonly #channels = new Map<string, Set<FakeChannel>>();

  openTab(): FakeTab {
    return new FakeTab(this);
  }

  join(name: string, channel: FakeChannel): void {
    const channels = this.#channels.get(name) ?? new Set();
    this.#channels.set(name, channels.add(channel));
  }

  /** To all tabs but the one that posts, in order, in a later turn. */
  post(name: string, from: FakeChannel, message: unknown): void {
    const copy: unknown = structuredClone(message);
    for (const channel of this.#channels.get(name) ?? []) {
      if (channel !== from) queueMicrotask(() => channel.receive(copy));
    }
  }

  queue(name: string, entry: Queued): void {
    const queue = this.#queues.get(name) ?? [];
    this.#queues.set(name, queue);
    queue.push(entry);
    if (queue.length === 1) this.#grant(name);
  }

  killed(tab: FakeTab): void {
    for (const [name, queue] of this.#queues) {
      const wasFirst = queue[0]?.tab === tab;
      this.#queues.set(name, queue.filter((entry) => entry.tab !== tab));
      if (wasFirst) this.#grant(name);
    }
  }

  #grant(name: string): void {
    const first = this.#queues.get(name)?.[0];
    if (!first) return;
    void Promise.resolve()
      .then(first.held)
      .then(() => {
        first.done();
        const queue = this.#queues.get(name) ?? [];
        if (queue[0] !== first) return; // its tab was killed
        queue.shift();
        this.#grant(name);
      });
  }
}

export class FakeTab {
  readonly #browser: FakeBrowser;
  readonly support: TabSupport;
  isDead = false;

  constructor(browser: FakeBrowser) {
    this.#browser = browser;
    this.support = {
      locks: {
        request: (name, { signal }, held) =>
          new Promise((resolve, reject) => {
            signal.addEventListener("abort", () => reject(new Error("aborted")));
            browser.queue(name, { tab: this, held: () => (signal.aborted ? Promise.resolve() : held()), done: () => resolve(undefined) });
          }),
      },
      openChannel: (name) => new FakeChannel(name, browser, this),
    };
  }

  /** As a browser ends a tab: nothing is said. */
  kill(): void {
    this.isDead = true;
    this.#browser.killed(this);
  }
}

class FakeChannel implements Channel {
  onmessage: ((event: never) => void) | null = null;
  readonly #name: string;
  readonly #browser: FakeBrowser;
  readonly #tab: FakeTab;
  #isClosed = false;

  constructor(name: string, browser: FakeBrowser, tab: FakeTab) {
    this.#name = name;
    this.#browser = browser;
    this.#tab = tab;
    browser.join(name, this);
  }

  postMessage(message: unknown): void {
    if (!this.#isClosed && !this.#tab.isDead) this.#browser.post(this.#name, this, message);
  }

  receive(message: unknown): void {
    if (!this.#isClosed && !this.#tab.isDead) this.onmessage?.({ data: message } as never);
  }

  close(): void {
    this.#isClosed = true;
  }
}
