// Locks and channels of one browser whose tabs can be killed.
import type { Channel, TabSupport } from "../../src/tabs/browser.js";

interface Queued {
  readonly tab: FakeTab;
  readonly held: () => Promise<void>;
  readonly done: () => void;
  readonly lost: () => void;
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

  /** As `steal` does: whoever holds the lock loses it. */
  steal(name: string, entry: Queued): void {
    const queue = this.#queues.get(name) ?? [];
    const holder = queue.shift();
    this.#queues.set(name, [entry, ...queue]);
    holder?.lost();
    this.#grant(name);
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
        request: (name, options, held) =>
          new Promise((resolve, reject) => {
            if (this.isDead) return;
            const entry = { tab: this, done: () => resolve(undefined), lost: () => this.run(() => reject(new Error("stolen"))) };
            if ("steal" in options) {
              browser.steal(name, { ...entry, held });
              return;
            }
            const { signal } = options;
            signal.addEventListener("abort", () => reject(new Error("aborted")));
            browser.queue(name, { ...entry, held: () => (signal.aborted ? Promise.resolve() : held()) });
          }),
      },
      isInFront: () => this.isInFront,
      openChannel: (name) => new FakeChannel(name, browser, this),
    };
  }

  isInFront = true;
  #waiting: (() => void)[] | undefined;

  /** Now, or when the tab runs again. */
  run(what: () => void): void {
    if (this.#waiting) this.#waiting.push(what);
    else what();
  }

  /** As a browser suspends a tab in the background: it hears nothing, and does nothing that others see. */
  suspend(): void {
    this.#waiting = [];
  }

  get isSuspended(): boolean {
    return this.#waiting !== undefined;
  }

  resume(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = undefined;
    for (const what of waiting) what();
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
    if (!this.#isClosed && !this.#tab.isDead && !this.#tab.isSuspended) this.#browser.post(this.#name, this, message);
  }

  receive(message: unknown): void {
    this.#tab.run(() => {
      if (!this.#isClosed && !this.#tab.isDead) this.onmessage?.({ data: message } as never);
    });
  }

  close(): void {
    this.#isClosed = true;
  }
}
