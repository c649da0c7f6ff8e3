// The user's list of conversations, as a pure model: pages and single lines from the server, and what changes between them.
//
// The server counts; between two of its answers this model counts on. An answer and the entries around it come in any order, so
// each line keeps the newest entries that it has counted itself: those that an answer does not include are added to it.
import type { ConversationView, Entry } from "../wire/entries.js";
import { changesOf } from "./slots.js";

const TAIL_MAX = 100;

/** An entry that was counted here: whether as unread, whether as a mention. */
interface Counted {
  readonly seq: number;
  readonly at: number;
  readonly entry: Entry;
  readonly isUnread: boolean;
  readonly isMention: boolean;
}

interface Line {
  readonly view: ConversationView;
  /** The newest entries without a hole, up to `view.last_seq`. */
  readonly tail: readonly Counted[];
}

export class ConversationList {
  readonly #me: string;
  readonly #lines = new Map<string, Line>();
  /** Lines that cannot be counted on: the server has to be asked. */
  readonly stale = new Set<string>();

  constructor(me: string) {
    this.#me = me;
  }

  get views(): readonly ConversationView[] {
    return [...this.#lines.values()].map(({ view }) => view);
  }

  get size(): number {
    return this.#lines.size;
  }

  view(id: string): ConversationView | undefined {
    return this.#lines.get(id)?.view;
  }

  take(entry: Entry): void {
    const line = this.#lines.get(entry.conversation);
    if (!line) {
      this.stale.add(entry.conversation);
      return;
    }
    const changed = this.#changeLast(line, entry);
    const { view } = changed;
    if (entry.seq <= view.last_seq) {
      this.#lines.set(view.id, changed);
      return;
    }
    if (entry.seq > view.last_seq + 1) this.stale.add(view.id);
    const counted = this.#count(entry);
    const tail = entry.seq === view.last_seq + 1 ? [...changed.tail, counted].slice(-TAIL_MAX) : [counted];
    this.#lines.set(view.id, { view: added(view, [counted]), tail });
  }

  /** This user has read up to `seq`. */
  read(id: string, seq: number): void {
    const line = this.#lines.get(id);
    if (line) this.#lines.set(id, this.#withRead(line, seq));
  }

  /** The server's line, which may be older or newer than what has come. */
  put(view: ConversationView): void {
    const line = this.#lines.get(view.id);
    this.stale.delete(view.id);
    if (!line || view.last_seq >= line.view.last_seq) {
      const tail = line?.view.last_seq === view.last_seq ? line.tail : [];
      const fresh: Line = { view, tail };
      this.#lines.set(view.id, line ? this.#withRead(fresh, line.view.read_seq) : fresh);
      return;
    }
    const missing = line.tail.filter(({ seq }) => seq > view.last_seq);
    // The answer is older than what came since, and that is not all held any more: ask again.
    if (missing.length < line.view.last_seq - view.last_seq) this.stale.add(view.id);
    const merged: Line = { view: added(view, missing), tail: line.tail };
    this.#lines.set(view.id, this.#withRead(merged, line.view.read_seq));
  }

  /** Changes of the line itself, such as a preference that was just set. */
  patch(id: string, change: Partial<ConversationView>): void {
    const line = this.#lines.get(id);
    if (line) this.#lines.set(id, { ...line, view: { ...line.view, ...change } });
  }

  remove(id: string): void {
    this.#lines.delete(id);
    this.stale.delete(id);
  }

  /** The whole list was read: lines that are not in it are gone, but for those that came meanwhile. */
  keepOnly(ids: ReadonlySet<string>): void {
    for (const id of this.#lines.keys()) if (!ids.has(id)) this.#lines.delete(id);
  }

  clear(): void {
    this.#lines.clear();
    this.stale.clear();
  }

  #count(entry: Entry): Counted {
    const isUnread = entry.kind === "message" && entry.from !== this.#me && entry.silent !== true;
    const named = entry.mentions?.some((user) => user === this.#me || user === "@all") ?? false;
    return { seq: entry.seq, at: entry.at, entry, isUnread, isMention: isUnread && named };
  }

  #withRead(line: Line, seq: number): Line {
    const { view, tail } = line;
    if (seq <= view.read_seq) return line;
    // The mark may be ahead of the list: what comes up to it is then read already.
    const read_seq = seq;
    const { unread_capped: _, ...kept } = view;
    if (read_seq >= view.last_seq) return { view: { ...kept, read_seq, unread: 0, mentions: 0 }, tail };
    const after = tail.filter((counted) => counted.seq > read_seq);
    if (after.length < view.last_seq - read_seq) {
      this.stale.add(view.id);
      // Until the server has counted: no more than there are entries.
      const unread = Math.min(view.unread, view.last_seq - read_seq);
      return { view: { ...view, read_seq, unread, mentions: Math.min(view.mentions, unread) }, tail };
    }
    return { view: { ...kept, read_seq, unread: sum(after, "isUnread"), mentions: sum(after, "isMention") }, tail };
  }

  /** Edits and recalls of the message that the line shows. */
  #changeLast(line: Line, entry: Entry): Line {
    const last = line.view.last_message;
    if (!last) return line;
    let slot = { is: "message" as const, entry: last, reactionsAt: 0, pinnedAt: 0 };
    for (const [seq, change] of changesOf(entry)) {
      if (entry.kind === "recall" && seq > line.view.read_seq) this.stale.add(line.view.id); // its mentions count no more
      if (seq === last.seq) slot = change(slot);
    }
    return slot.entry === last ? line : { ...line, view: { ...line.view, last_message: slot.entry } };
  }
}

function added(view: ConversationView, counted: readonly Counted[]): ConversationView {
  let next = view;
  for (const { entry, isUnread, isMention } of counted) {
    const { hidden: _, ...shown } = next;
    next = {
      ...(entry.kind === "message" ? shown : next), // a hidden line comes back with its next message
      last_seq: entry.seq,
      last_at: entry.at,
      last_entry: entry,
      ...(entry.kind === "message" && { last_message: entry }),
      unread: next.unread + (isUnread && entry.seq > next.read_seq ? 1 : 0),
      mentions: next.mentions + (isMention && entry.seq > next.read_seq ? 1 : 0),
    };
  }
  return next;
}

function sum(counted: readonly Counted[], what: "isUnread" | "isMention"): number {
  return counted.reduce((count, item) => count + (item[what] ? 1 : 0), 0);
}
