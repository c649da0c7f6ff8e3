// What timelines and lists are made of, as it stands on the wire (docs/asyncapi.json). Fields that the server leaves out
// are absent here; a client ignores fields that it does not know.
import type { Json } from "./json.js";

/** The kinds of entries that this client understands. A server may have more: those are skipped, and keep their `seq`. */
export const ENTRY_KINDS = [
  "message",
  "edit",
  "recall",
  "reactions",
  "pins",
  "member_change",
  "conversation_change",
  "assignment",
] as const;

export type EntryKind = (typeof ENTRY_KINDS)[number];

/** One key's reactions to a message. */
export interface Reaction {
  readonly key: string;
  readonly count: number;
  /** The newest users who reacted so, at most three. */
  readonly users: readonly string[];
}

/** The message that a reply answers, as it is now. */
export interface ReplyQuote {
  readonly seq: number;
  readonly from?: string;
  readonly type?: string;
  /** Absent when it is larger than 1 KiB or was recalled. */
  readonly body?: Json;
  readonly recalled?: boolean;
}

/** Who did it and when; without `by` the app server did it. */
export interface Mark {
  readonly at: number;
  readonly by?: string;
}

/** One entry of a conversation's timeline. */
export interface Entry {
  readonly conversation: string;
  /** 1, 2, 3, … within the conversation, without a hole. */
  readonly seq: number;
  /** An `EntryKind`, or a word of a newer server. */
  readonly kind: string;
  /** Milliseconds since 1970 UTC. */
  readonly at: number;
  /** Absent when the app server acted. */
  readonly from?: string;
  readonly client_msg_id?: string;
  readonly type: string;
  readonly body: Json;
  readonly mentions?: readonly string[];
  readonly silent?: boolean;
  /** Of an `edit`, `recall`, `reactions` or `pins`: the message that it changes. */
  readonly target?: number;
  /** Of an edited message 2, 3, …; of an `edit` the version that it made. */
  readonly version?: number;
  readonly edited_at?: number;
  readonly edited_by?: string;
  readonly recalled?: Mark;
  readonly reactions?: readonly Reaction[];
  readonly reply_to?: ReplyQuote;
  readonly pinned?: Mark;
  /** A message that still grows, or whose sender was lost; absent once it ended. */
  readonly stream?: "open" | "interrupted";
}

export type ConversationKind = "direct" | "group" | "official";
export type Role = "member" | "admin" | "owner";

/** A conversation in a user's list. */
export interface ConversationView {
  readonly id: string;
  readonly kind: ConversationKind;
  readonly role: Role;
  readonly name?: string;
  readonly avatar?: string;
  /** The newest entry; 0: there is none. */
  readonly last_seq: number;
  readonly last_at: number;
  readonly last_entry?: Entry;
  /** The newest entry that is a message. */
  readonly last_message?: Entry;
  readonly read_seq: number;
  /** Others' messages after `read_seq` that are not silent; at least so many if `unread_capped`. */
  readonly unread: number;
  readonly unread_capped?: boolean;
  /** How many of those mention this user. */
  readonly mentions: number;
  readonly muted: boolean;
  readonly muted_until?: number;
  readonly pinned_at?: number;
  readonly archived?: boolean;
  readonly hidden?: boolean;
  /** The user's own name for it. */
  readonly title?: string;
  readonly marked_unread?: boolean;
  /** The user has cleared the history up to here. */
  readonly cleared_seq?: number;
}

/** A part of a timeline, oldest first. */
export interface HistoryPage {
  readonly entries: readonly Entry[];
  /** The cursor of the page of newer entries. */
  readonly next?: string;
  /** The cursor of the page of older entries. */
  readonly previous?: string;
  readonly more: boolean;
  readonly conversation_first_seq?: number;
  readonly conversation_last_seq?: number;
  readonly first_seq: number;
  readonly last_seq: number;
}

/** Entries that were missed and do not follow by themselves. */
export interface MissedRange {
  readonly conversation: string;
  readonly from_seq: number;
  readonly to_seq: number;
}

/** What a committed send answers; a retry gets the same. */
export interface SendReceipt {
  readonly conversation: string;
  readonly seq: number;
  readonly at: number;
  readonly version?: number;
  readonly duplicate?: boolean;
}
