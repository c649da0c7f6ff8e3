// From what is held to what an app sees.
import { TidingsError } from "../errors.js";
import type { Message, Notice, SentMessage, TimelineItem } from "../message.js";
import type { Entry } from "../wire/entries.js";
import type { OutboxItem } from "./outbox.js";
import type { Slot } from "./slots.js";

// A slot that did not change is the same item: lists that compare by identity draw only what changed.
const itemsOfSlots = new WeakMap<Slot, TimelineItem>();

/** Who made an entry: of what an account did, its agent, whose ids its `client_msg_id`s are. */
export function actorOf(entry: Pick<Entry, "from" | "agent">): string | undefined {
  return entry.agent ?? entry.from ?? undefined;
}

export function keyOf(entry: Pick<Entry, "from" | "agent" | "client_msg_id" | "seq">): string {
  const actor = actorOf(entry);
  return actor !== undefined && entry.client_msg_id != null ? `${actor}/${entry.client_msg_id}` : `#${entry.seq}`;
}

export function itemOfSlot(slot: Slot): TimelineItem | undefined {
  if (slot.is === "hidden") return undefined;
  const known = itemsOfSlots.get(slot);
  if (known) return known;
  const item = slot.is === "message" ? messageOf(slot.entry) : noticeOf(slot.entry);
  itemsOfSlots.set(slot, item);
  return item;
}

export function messageOf(entry: Entry): SentMessage {
  return {
    is: "message",
    state: "sent",
    key: keyOf(entry),
    conversation: entry.conversation,
    seq: entry.seq,
    from: entry.from ?? undefined,
    agent: entry.agent ?? undefined,
    at: entry.at,
    type: entry.type,
    body: entry.body,
    mentions: entry.mentions ?? [],
    silent: entry.silent ?? false,
    clientMsgId: entry.client_msg_id ?? undefined,
    replyTo: entry.reply_to ?? undefined,
    version: entry.version ?? 1,
    edited: entry.edited_at == null ? undefined : { at: entry.edited_at, ...(entry.edited_by != null && { by: entry.edited_by }) },
    recalled: entry.recalled ?? undefined,
    reactions: entry.reactions ?? [],
    pinned: entry.pinned ?? undefined,
    growing: entry.stream ?? undefined,
    expires: entry.expires ?? undefined,
  };
}

function noticeOf(entry: Entry): Notice {
  return {
    is: "notice",
    key: `#${entry.seq}`,
    conversation: entry.conversation,
    seq: entry.seq,
    kind: entry.kind === "member_change" ? "member_change" : "conversation_change",
    from: entry.from ?? undefined,
    at: entry.at,
    type: entry.type,
    body: entry.body,
  };
}

const itemsOfOutbox = new WeakMap<OutboxItem, Message>();

export function itemOfOutbox(item: OutboxItem, me: string): Message {
  const known = itemsOfOutbox.get(item);
  if (known) return known;
  const made = unsentMessage(item, me);
  itemsOfOutbox.set(item, made);
  return made;
}

function unsentMessage(item: OutboxItem, me: string): Message {
  const { message, receipt } = item;
  const content = {
    is: "message" as const,
    key: `${me}/${item.id}`,
    conversation: item.conversation,
    from: me,
    agent: undefined,
    at: receipt?.at ?? item.at,
    type: message.type ?? "text",
    body: message.body,
    mentions: message.mentions ?? [],
    silent: message.silent ?? false,
    clientMsgId: item.id,
    replyTo: message.reply_to === undefined ? undefined : { seq: message.reply_to },
  };
  if (item.state === "settled" && receipt) {
    const marks = { version: 1, edited: undefined, recalled: undefined, reactions: [], pinned: undefined, growing: undefined, expires: undefined };
    return { ...content, state: "sent", seq: receipt.seq, ...marks };
  }
  if (item.state === "refused") {
    return { ...content, state: "refused", error: item.error ?? new TidingsError("internal", "the message was refused") };
  }
  return { ...content, state: "pending" };
}
