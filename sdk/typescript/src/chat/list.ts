// The user's list of conversations, as a pure model: pages and single lines from the server, and what changes between them.
//
// The server counts; between two of its answers this model counts on. An answer and the entries around it come in any order, so
// each line keeps the newest entries that it has counted itself: those that an answer does not include are added to it.
import type { ConversationView, Entry } from "../wire/entries.js";
import type { Json } from "../wire/json.js";
import { changesOf, previewChangeOf, withoutCleared, type MessageSlot } from "./slots.js";

const TAIL_MAX = 100;

/** An entry that was counted here, as it is now: whether as unread, whether as a mention, and what it changes in the line. */
interface Counted {
  readonly seq: number;
  readonly entry: Entry;
  readonly isUnread: boolean;
  readonly isMention: boolean;
  readonly card: CardChange;
  /** An edit without a body has changed the message since: what it is now the server knows. */
  readonly isUnclear?: boolean;
}

type CardChange = Partial<Pick<ConversationView, "name" | "avatar" | "role">>;

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
  /** Of conversations without a line: the newest entry that came. A line that does not include it is too old. */
  readonly #missed = new Map<string, number>();

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
      this.#missed.set(entry.conversation, Math.max(entry.seq, this.#missed.get(entry.conversation) ?? 0));
      return;
    }
    // What came before is in the line: only an edit or a recall says by itself whether it is news.
    if (entry.seq <= line.view.last_seq && !isChange(entry)) return;
    const changed = this.#changeEarlier(line, entry);
    const { view } = changed;
    if (entry.seq <= view.last_seq) {
      this.#lines.set(view.id, this.#withLast(changed));
      return;
    }
    if (entry.seq > view.last_seq + 1 || mayChangeRole(entry)) this.stale.add(view.id);
    const counted = this.#count(entry);
    const tail = entry.seq === view.last_seq + 1 ? [...changed.tail, counted].slice(-TAIL_MAX) : [counted];
    this.#lines.set(view.id, this.#withLast({ view: added(view, [counted]), tail }));
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
    if ((this.#missed.get(view.id) ?? 0) > view.last_seq) this.stale.add(view.id);
    else this.#missed.delete(view.id);
    if (!line || view.last_seq >= line.view.last_seq) {
      const tail = line?.view.last_seq === view.last_seq ? line.tail : [];
      const fresh: Line = { view, tail };
      this.#lines.set(view.id, line ? this.#withRead(fresh, line.view.read_seq) : fresh);
      return;
    }
    const missing = line.tail.filter(({ seq }) => seq > view.last_seq);
    // The answer is older than what came since, and that is not all held any more: ask again.
    if (missing.length < line.view.last_seq - view.last_seq) this.stale.add(view.id);
    const merged = this.#withLast({ view: added(view, missing), tail: line.tail });
    // It has counted messages as they were before they were edited or recalled.
    if (missing.some(({ entry }) => isUnclear(entry, merged.view.last_message))) this.stale.add(view.id);
    const isOutdated = missing.some(({ entry }) => isChange(entry));
    this.#lines.set(view.id, this.#withRead(isOutdated ? this.#recount(merged) : merged, line.view.read_seq));
  }

  /** Ends the mutes whose time is over; answers when the next one ends. */
  endMutes(now: number): number | undefined {
    let next: number | undefined;
    for (const [id, line] of this.#lines) {
      const { muted_until: end, ...view } = line.view;
      if (!view.muted || end == null) continue;
      if (end <= now) this.#lines.set(id, { ...line, view: { ...view, muted: false } });
      else next = Math.min(end, next ?? end);
    }
    return next;
  }

  remove(id: string): void {
    this.#lines.delete(id);
    this.stale.delete(id);
    this.#missed.delete(id);
  }

  /** The whole list was read: lines that are not in it are gone, but for those that came meanwhile. */
  keepOnly(ids: ReadonlySet<string>): void {
    for (const id of this.#lines.keys()) if (!ids.has(id)) this.#lines.delete(id);
  }

  clear(): void {
    this.#lines.clear();
    this.stale.clear();
    this.#missed.clear();
  }

  #count(entry: Entry): Counted {
    const isUnread = entry.kind === "message" && entry.from !== this.#me && entry.silent !== true && !entry.recalled;
    return { seq: entry.seq, entry, isUnread, isMention: isUnread && this.#isNamedIn(entry), card: cardChange(entry, this.#me) };
  }

  #isNamedIn({ mentions }: Entry): boolean {
    return mentions?.some((user) => user === this.#me || user === "@all") ?? false;
  }

  #withRead(line: Line, seq: number): Line {
    const { view, tail } = line;
    if (seq <= view.read_seq) return line;
    // The mark may be ahead of the list: what comes up to it is then read already.
    const read_seq = seq;
    const { unread_capped: _, ...kept } = view;
    if (read_seq >= view.last_seq) return { view: { ...kept, read_seq, unread: 0, mentions: 0 }, tail };
    const counts = countsOf(view, tail, read_seq);
    if (counts) return { view: { ...kept, read_seq, ...counts }, tail };
    this.stale.add(view.id);
    // Until the server has counted: no more than there are entries.
    const unread = Math.min(view.unread, view.last_seq - read_seq);
    return { view: { ...view, read_seq, unread, mentions: Math.min(view.mentions, unread) }, tail };
  }

  /** The counts anew, from the entries that are held; where these do not reach back far enough the server has to count. */
  #recount(line: Line): Line {
    const { view, tail } = line;
    const counts = countsOf(view, tail, view.read_seq);
    if (!counts) {
      this.stale.add(view.id);
      return line;
    }
    const { unread_capped: _, ...kept } = view;
    return { view: { ...kept, ...counts }, tail };
  }

  /** Edits and recalls change what a message counts as: a recalled one is not unread, and an edit may mention this user or cease to. */
  #changeEarlier(line: Line, entry: Entry): Line {
    if (!changesMessages(entry)) return line;
    const { target } = entry;
    let isCountChanged = false;
    const tail = line.tail.map((before) => {
      if (isUnclear(entry, before.entry)) return { ...before, isUnclear: true };
      const changed = changedBy(entry, before.entry);
      if (changed === before.entry) return before;
      const after = this.#count(changed);
      if (after.isUnread !== before.isUnread || after.isMention !== before.isMention) isCountChanged = true;
      return after;
    });
    const last = line.view.last_message;
    const view: ConversationView = last ? { ...line.view, last_message: changedBy(entry, last) } : line.view;
    const now: Line = { view, tail };
    if (entry.seq > view.last_seq && isUnclear(entry, last)) this.stale.add(view.id);
    if (!isChange(entry) || target == null || target <= view.read_seq) return now;
    if (tail.some(({ seq }) => seq === target)) return isCountChanged ? this.#recount(now) : now;
    const mayCount = entry.kind === "recall" || view.mentions > 0 || this.#isNamedIn(entry);
    if (entry.seq > view.last_seq && mayCount) this.stale.add(view.id);
    return now;
  }

  /** A line whose message was recalled shows the one before; where that is not held the server has to say. */
  #withLast(line: Line): Line {
    const { last_message: last, ...view } = line.view;
    if (!last?.recalled) return line;
    const from = view.cleared_seq ?? 0;
    const before = line.tail.filter(({ seq, entry }) => seq > from && isShown(entry)).at(-1);
    if (!before || before.isUnclear) this.stale.add(view.id);
    return { ...line, view: before ? { ...view, last_message: withoutCleared(before.entry, from) } : view };
  }
}

/** An edit without a body was made obsolete, or says that there is none: what it does to the line's message the server knows. */
function isUnclear({ kind, body, target }: Entry, last: Entry | undefined): boolean {
  return kind === "edit" && body === null && target != null && last !== undefined && (target === last.seq || target === last.reply_to?.seq);
}

/** Whether a line may show it as its newest message. */
function isShown({ kind, recalled }: Entry): boolean {
  return kind === "message" && !recalled;
}

/** Whether an entry may change what an earlier message counts as. */
function isChange({ kind }: Entry): boolean {
  return kind === "edit" || kind === "recall";
}

/** Whether an entry changes how earlier messages look. */
function changesMessages(entry: Entry): boolean {
  return isChange(entry) || entry.kind === "reactions" || entry.kind === "pins";
}

/** A message as an entry leaves it, and its preview of the message that it answers. */
function changedBy(entry: Entry, message: Entry): Entry {
  if (message.kind !== "message") return message;
  let slot: MessageSlot = { is: "message", entry: message, reactionsAt: 0, pinnedAt: 0 };
  for (const [seq, change] of changesOf(entry)) if (seq === message.seq) slot = change(slot);
  const preview = previewChangeOf(entry);
  if (preview && message.reply_to?.seq === preview.target) slot = preview.change(slot);
  return slot.entry;
}

/** What the notice of a change says of the line: the card, and the role of this user. */
function cardChange({ kind, body }: Entry, me: string): CardChange {
  if (body === null || typeof body !== "object" || Array.isArray(body)) return {};
  const { name, avatar, changed: users, role, owner } = body as { readonly [name: string]: Json };
  if (kind === "conversation_change") return { ...(typeof name === "string" && { name }), ...(typeof avatar === "string" && { avatar }) };
  if (kind === "member_change" && owner === me) return { role: "owner" }; // the last one has left
  const isMine = kind === "member_change" && Array.isArray(users) && users.includes(me);
  return isMine && (role === "member" || role === "admin" || role === "owner") ? { role } : {};
}

/** Whether a notice names only some of those whose roles it tells of. */
function mayChangeRole({ kind, body }: Entry): boolean {
  if (kind !== "member_change" || body === null || typeof body !== "object" || Array.isArray(body)) return false;
  const { changed, changed_count: count } = body as { readonly [name: string]: Json };
  return Array.isArray(changed) && typeof count === "number" && count > changed.length;
}

function added(view: ConversationView, counted: readonly Counted[]): ConversationView {
  let next = view;
  for (const { entry, isUnread, isMention, card } of counted) {
    const { hidden: _, ...shown } = next;
    const last = next.last_message;
    next = {
      ...(entry.kind === "message" ? shown : next), // a hidden line comes back with its next message
      ...card,
      last_seq: entry.seq,
      last_at: entry.at,
      last_entry: entry,
      ...(isShown(entry) ? { last_message: entry } : last && { last_message: changedBy(entry, last) }),
      unread: next.unread + (isUnread && entry.seq > next.read_seq ? 1 : 0),
      mentions: next.mentions + (isMention && entry.seq > next.read_seq ? 1 : 0),
    };
  }
  return next;
}

/** What is unread after a mark; undefined where the entries that are held do not reach back to it. */
function countsOf(view: ConversationView, tail: readonly Counted[], readSeq: number): Pick<ConversationView, "unread" | "mentions"> | undefined {
  const from = Math.max(readSeq, view.cleared_seq ?? 0);
  const after = tail.filter(({ seq }) => seq > from);
  if (after.length < view.last_seq - from) return undefined;
  const count = (what: "isUnread" | "isMention"): number => after.filter((counted) => counted[what]).length;
  return { unread: count("isUnread"), mentions: count("isMention") };
}
