import type { Push } from "../wire/popups.js";
import type { PushFrame } from "../wire/server-frames.js";
import type { Core } from "./core.js";

const SEEN_MAX = 4_096;
// The server takes so many numbers in one frame.
const ACK_MAX = 1_000;

/** Acknowledges each push, also one that was seen before, and hands each on once. */
export class Pushes {
  readonly #core: Core;
  readonly #seen = new Set<number>();
  #toAcknowledge: number[] = [];

  constructor(core: Core) {
    this.#core = core;
  }

  take(frame: PushFrame): void {
    const { t: _, ...push } = frame;
    const isNew = !this.#seen.has(push.push);
    this.#seen.add(push.push);
    if (this.#seen.size > SEEN_MAX) for (const oldest of this.#seen) {
      this.#seen.delete(oldest);
      break;
    }
    if (isNew) this.#core.emitter.emit("push", push satisfies Push);
    // Those of one turn go in one frame.
    if (this.#toAcknowledge.push(push.push) === 1) queueMicrotask(() => this.#acknowledge());
  }

  #acknowledge(): void {
    const pushes = this.#toAcknowledge;
    this.#toAcknowledge = [];
    for (let start = 0; start < pushes.length; start += ACK_MAX) this.#core.link.tell({ t: "ack", pushes: pushes.slice(start, start + ACK_MAX) });
  }
}
