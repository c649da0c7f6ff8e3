import type { Clock } from "../../src/session/clock.js";

interface Timer {
  readonly at: number;
  readonly order: number;
  readonly then: () => void;
}

/** Time that passes when a test says so, and chance that a test chooses. */
export class VirtualClock implements Clock {
  #now = 1_700_000_000_000;
  #order = 0;
  readonly #timers = new Set<Timer>();
  #random: () => number;

  constructor(random: () => number = () => 0.5) {
    this.#random = random;
  }

  now(): number {
    return this.#now;
  }

  random(): number {
    return this.#random();
  }

  setTimer(ms: number, then: () => void): () => void {
    const timer: Timer = { at: this.#now + Math.max(0, ms), order: ++this.#order, then };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  get pending(): number {
    return this.#timers.size;
  }

  /** The machine sleeps: time passes, and timers have no turn before it wakes. Then all that are due have theirs. */
  async sleep(ms: number): Promise<void> {
    await settle();
    this.#now += ms;
    await this.pass(0);
  }

  /** Lets time pass; what waits for promises runs between timers. */
  async pass(ms: number): Promise<void> {
    const end = this.#now + ms;
    await settle();
    for (;;) {
      const due = [...this.#timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at || a.order - b.order)[0];
      if (!due) break;
      this.#timers.delete(due);
      this.#now = Math.max(this.#now, due.at);
      due.then();
      await settle();
    }
    this.#now = end;
  }
}

/** Runs everything that waits for promises and nothing else. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
