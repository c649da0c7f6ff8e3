import { Cell } from "./cell.js";

// Older drafts are let go: the browser's storage is shared with everything of this origin.
const DRAFTS_MAX = 50;
const DRAFT_CHARACTERS_MAX = 20_000;
const SAVED_WITHIN_MS = 300;

/** What was written and not sent, by conversation. It outlives the window, and the user's other windows follow it. */
export class Drafts {
  readonly #key: string;
  readonly #all: Map<string, Cell<string>>;
  /** Of these this window has the newest text. */
  readonly #unsaved = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(user: string) {
    this.#key = `tidings drafts ${user}`;
    this.#all = new Map([...stored(this.#key)].map(([conversation, text]) => [conversation, new Cell(text)]));
    addEventListener("storage", (event) => {
      if (event.key === this.#key) this.#follow(parse(event.oldValue), parse(event.newValue));
    });
    addEventListener("pagehide", () => this.#save());
  }

  of(conversation: string): Cell<string> {
    const draft = this.#all.get(conversation) ?? new Cell("");
    this.#all.set(conversation, draft);
    return draft;
  }

  set(conversation: string, text: string): void {
    this.of(conversation).set(text);
    this.#unsaved.add(conversation);
    // What was sent is gone everywhere at once.
    if (text === "") this.#save();
    else this.#timer ??= setTimeout(() => this.#save(), SAVED_WITHIN_MS);
  }

  #save(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#unsaved.size === 0) return;
    try {
      const drafts = stored(this.#key);
      for (const conversation of this.#unsaved) {
        const text = this.of(conversation).get();
        drafts.delete(conversation);
        if (text.trim() !== "") drafts.set(conversation, text.slice(0, DRAFT_CHARACTERS_MAX));
      }
      localStorage.setItem(this.#key, JSON.stringify([...drafts].slice(-DRAFTS_MAX)));
    } catch {
      // A full or forbidden storage: the drafts live as long as the window.
    }
    this.#unsaved.clear();
  }

  /** Another window has written some. What is written here and not yet saved stays: it is newer. */
  #follow(before: ReadonlyMap<string, string>, now: ReadonlyMap<string, string>): void {
    // The oldest that had no room were not sent.
    const keepsAll = now.size < DRAFTS_MAX;
    for (const conversation of new Set([...before.keys(), ...now.keys()])) {
      const text = now.get(conversation) ?? "";
      const isChanged = text !== (before.get(conversation) ?? "") && (text !== "" || keepsAll);
      const draft = this.of(conversation);
      // A long one may be whole here alone.
      if (isChanged && !this.#unsaved.has(conversation) && draft.get().slice(0, DRAFT_CHARACTERS_MAX) !== text) draft.set(text);
    }
  }
}

function stored(key: string): Map<string, string> {
  try {
    return parse(localStorage.getItem(key));
  } catch {
    return new Map();
  }
}

function parse(text: string | null): Map<string, string> {
  try {
    const entries: unknown = JSON.parse(text ?? "[]");
    return new Map(Array.isArray(entries) ? (entries as [string, string][]) : []);
  } catch {
    return new Map();
  }
}
