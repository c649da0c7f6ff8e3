import { Cell } from "../observable.js";
import type { Core } from "./core.js";

// The server passes typing on once a second at most; who types says so every three seconds, and is believed for twice that.
const TELL_EVERY_MS = 3_000;
const BELIEVED_MS = 6_000;

/** Who types where. */
export class Typing {
  readonly #core: Core;
  readonly #cells = new Map<string, Cell<readonly string[]>>();
  readonly #ends = new Map<string, () => void>();
  readonly #toldAt = new Map<string, number>();

  constructor(core: Core) {
    this.#core = core;
  }

  in(conversation: string): Cell<readonly string[]> {
    let cell = this.#cells.get(conversation);
    if (!cell) this.#cells.set(conversation, (cell = new Cell<readonly string[]>([])));
    return cell;
  }

  tell(conversation: string): void {
    const now = this.#core.clock.now();
    if (now - (this.#toldAt.get(conversation) ?? -Infinity) < TELL_EVERY_MS) return;
    this.#toldAt.set(conversation, now);
    this.#core.link.tell({ t: "typing", conversation });
  }

  /** This user's message is out: the next key press is told at once. */
  sent(conversation: string): void {
    this.#toldAt.delete(conversation);
  }

  take(conversation: string, user: string): void {
    if (user === this.#core.me) return;
    const name = `${conversation} ${user}`;
    this.#ends.get(name)?.();
    this.#ends.set(name, this.#core.clock.setTimer(BELIEVED_MS, () => this.end(conversation, user)));
    const cell = this.in(conversation);
    if (!cell.get().includes(user)) cell.set([...cell.get(), user]);
  }

  /** What was typed has come, or does not. */
  end(conversation: string, user: string): void {
    const name = `${conversation} ${user}`;
    this.#ends.get(name)?.();
    if (!this.#ends.delete(name)) return;
    const cell = this.in(conversation);
    cell.set(cell.get().filter((other) => other !== user));
  }

  close(): void {
    for (const end of this.#ends.values()) end();
    this.#ends.clear();
  }
}
