// One place of a timeline, and how later entries change it. Every change may come twice, or late: versions and the entries' own
// numbers say whether it is news.
import type { Entry, Mark, Reaction, ReplyQuote } from "../wire/entries.js";
import type { Json } from "../wire/json.js";

export interface MessageSlot {
  readonly is: "message";
  /** As it stands now: body, mentions, marks. */
  readonly entry: Entry;
  /** The number of the newest entry that the reactions are known to include; so for the pin. */
  readonly reactionsAt: number;
  readonly pinnedAt: number;
  /** It shows what this user's own change was answered with. The entry that tells of the change is still to come, and knows better. */
  readonly isAnswered?: boolean;
  /** An edit without a body has come: it was made obsolete, or says that there is none. What the message is now, history has. */
  readonly isUnclear?: boolean;
  /** The same of the message that this one answers. */
  readonly isQuoteUnclear?: boolean;
}

export interface OtherSlot {
  readonly is: "notice" | "hidden";
  readonly entry: Entry;
}

export type Slot = MessageSlot | OtherSlot;

/**
 * The place of an entry. `asOf` is the conversation's newest entry when the page was read that has it: marks on the message include
 * all changes up to there. Of an entry that came live it is the entry's own number.
 */
export function slotOf(entry: Entry, asOf: number): Slot {
  switch (entry.kind) {
    case "message":
      return { is: "message", entry, reactionsAt: asOf, pinnedAt: asOf };
    case "member_change":
    case "conversation_change":
      return { is: "notice", entry };
    default:
      return { is: "hidden", entry }; // changes of other messages, and kinds of a newer server
  }
}

// A preview of a message shows at most so much of it, as the server's do.
const PREVIEW_BYTES_MAX = 1_024;

function isShort(body: Json): boolean {
  return new TextEncoder().encode(JSON.stringify(body)).length <= PREVIEW_BYTES_MAX;
}

/** An entry without what it shows of a message that the user has cleared. */
export function withoutCleared(entry: Entry, cleared: number): Entry {
  const { reply_to: quote } = entry;
  return quote && quote.seq <= cleared && Object.keys(quote).length > 1 ? { ...entry, reply_to: { seq: quote.seq } } : entry;
}

/** What an entry changes in the messages that answer `target`: their preview of it. */
export function previewChangeOf(entry: Entry): { readonly target: number; readonly change: (slot: MessageSlot) => MessageSlot } | undefined {
  const { target } = entry;
  if (target == null) return undefined;
  if (entry.kind === "recall") {
    return { target, change: (slot) => requoted(slot, ({ body: _, ...kept }) => ({ ...kept, recalled: true })) };
  }
  if (entry.kind !== "edit") return undefined;
  if (entry.body === null) return { target, change: (slot) => (slot.entry.reply_to?.recalled ? slot : { ...slot, isQuoteUnclear: true }) };
  return {
    target,
    change: (slot) =>
      requoted(slot, (quote) => {
        if (quote.recalled) return quote;
        const { body: _, ...kept } = quote;
        return { ...kept, type: entry.type, ...(isShort(entry.body) && { body: entry.body }) };
      }),
  };
}

function requoted(slot: MessageSlot, change: (quote: ReplyQuote) => ReplyQuote): MessageSlot {
  const quote = slot.entry.reply_to;
  return quote ? { ...slot, isQuoteUnclear: false, entry: { ...slot.entry, reply_to: change(quote) } } : slot;
}

/** What an entry changes: the numbers of messages, each with what becomes of it. */
export function changesOf(entry: Entry): readonly (readonly [seq: number, change: (slot: MessageSlot) => MessageSlot])[] {
  switch (entry.kind) {
    case "edit":
      return entry.target == null ? [] : [[entry.target, (slot) => edited(slot, entry)]];
    case "recall":
      return entry.target == null ? [] : [[entry.target, (slot) => recalled(slot, markOf(entry))]];
    case "reactions":
      return reactionChanges(entry.body).map(({ seq, reactions }) => [seq, (slot) => reacted(slot, reactions, entry.seq)]);
    case "pins":
      return entry.target == null ? [] : [[entry.target, (slot) => pinned(slot, entry)]];
    default:
      return [];
  }
}

function edited(slot: MessageSlot, change: Entry): MessageSlot {
  const { entry } = slot;
  const [version, known] = [change.version ?? 2, entry.version ?? 1];
  if (version < known || (version === known && (slot.isAnswered !== true || entry.recalled))) return slot;
  if (change.body === null) return { ...slot, isUnclear: true };
  const { stream: _, mentions: __, edited_at, edited_by, ...kept } = entry;
  const isEnd = entry.stream === "open";
  const editor = isEnd ? { at: edited_at, by: edited_by } : { at: change.at, by: change.from };
  const marks = { version, ...(editor.at != null && { edited_at: editor.at }), ...(editor.by != null && { edited_by: editor.by }) };
  // What was recalled stays so: the edit was made before.
  if (entry.recalled) return { ...slot, isUnclear: false, entry: { ...kept, ...marks } };
  return {
    ...slot,
    isAnswered: false,
    isUnclear: false,
    entry: {
      ...kept,
      ...marks,
      type: change.type,
      body: change.body,
      // The end of a message that grows comes as its edit, too, and is none; one that broke off says so.
      ...(change.stream != null && { stream: change.stream }),
      ...(change.mentions && { mentions: change.mentions }),
    },
  };
}

function markOf(recall: Entry): Mark {
  return { at: recall.at, ...(recall.from != null && { by: recall.from }), ...(recall.expired && { expired: true }) };
}

function recalled(slot: MessageSlot, mark: Mark): MessageSlot {
  if (slot.entry.recalled && slot.isAnswered !== true) return slot;
  const { mentions: _, stream: __, reactions: ___, pinned: ____, expires: _____, ...kept } = slot.entry;
  return { ...slot, isAnswered: false, entry: { ...kept, body: null, recalled: mark } };
}

function reacted(slot: MessageSlot, reactions: readonly Reaction[], at: number): MessageSlot {
  if (at <= slot.reactionsAt || slot.entry.recalled) return slot;
  return { ...slot, entry: { ...slot.entry, reactions }, reactionsAt: at };
}

function pinned(slot: MessageSlot, change: Entry): MessageSlot {
  if (change.seq <= slot.pinnedAt || slot.entry.recalled) return slot;
  const { pinned: _, ...kept } = slot.entry;
  const isPinned = fieldOf(change.body, "pinned") === true;
  const entry: Entry = isPinned ? { ...kept, pinned: { at: change.at, ...(change.from != null && { by: change.from }) } } : kept;
  return { ...slot, entry, pinnedAt: change.seq };
}

function reactionChanges(body: Json): readonly { readonly seq: number; readonly reactions: readonly Reaction[] }[] {
  const changes = fieldOf(body, "changes");
  if (!Array.isArray(changes)) return [];
  return (changes as readonly Json[]).flatMap((change) => {
    const [seq, reactions] = [fieldOf(change, "seq"), fieldOf(change, "reactions")];
    return typeof seq === "number" && Array.isArray(reactions) ? [{ seq, reactions: reactions as unknown as readonly Reaction[] }] : [];
  });
}

function fieldOf(value: Json, name: string): Json | undefined {
  return value !== null && typeof value === "object" && !Array.isArray(value)
    ? (value as { readonly [name: string]: Json })[name]
    : undefined;
}
