import { Cell } from "./cell.js";

// Older drafts are let go: the browser's storage is shared with everything of this origin.
const DRAFTS_MAX = 50;
const DRAFT_CHARACTERS_MAX = 20_000;

/** What was written and not sent, by conversation. It outlives the window. */
export class Drafts {
  readonly #key: string;
  readonly #all: Cell<ReadonlyMap<string, string>>;

  constructor(user: string) {
    this.#key = `tidings drafts ${user}`;
    this.#all = new Cell(read(this.#key));
    // Another window of the same user.
    addEventListener("storage", (event) => {
      if (event.key === this.#key) this.#all.set(read(this.#key));
    });
  }

  get all(): Cell<ReadonlyMap<string, string>> {
    return this.#all;
  }

  of(conversation: string): string {
    return this.#all.get().get(conversation) ?? "";
  }

  set(conversation: string, text: string): void {
    if (text === this.of(conversation)) return;
    const drafts = new Map(this.#all.get());
    drafts.delete(conversation);
    if (text.trim() !== "") drafts.set(conversation, text.slice(0, DRAFT_CHARACTERS_MAX));
    const newest = new Map([...drafts].slice(-DRAFTS_MAX));
    this.#all.set(newest);
    try {
      localStorage.setItem(this.#key, JSON.stringify([...newest]));
    } catch {
      // A full or forbidden storage: the drafts live as long as the window.
    }
  }
}

function read(key: string): ReadonlyMap<string, string> {
  try {
    const entries: unknown = JSON.parse(localStorage.getItem(key) ?? "[]");
    return new Map(Array.isArray(entries) ? (entries as [string, string][]) : []);
  } catch {
    return new Map();
  }
}
