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
  /** What they reacted with: an emoji, or the app's own word. */
  readonly key: string;
  /** How many users reacted so. */
  readonly count: number;
  /** The newest users who reacted so, at most three. */
  readonly users: readonly string[];
}

/** The message that a reply answers, as it is now. */
export interface ReplyQuote {
  /** The message that is answered. */
  readonly seq: number;
  /** Who wrote it; absent when the app server did. */
  readonly from?: string;
  /** The app's kind of its content. */
  readonly type?: string;
  /** Absent when it is larger than 1 KiB or was recalled. */
  readonly body?: Json;
  /** It was taken back: there is no body. */
  readonly recalled?: boolean;
}

/** Who did it and when; without `by` the app server did it. */
export interface Mark {
  /** Milliseconds since 1970 UTC. */
  readonly at: number;
  /** The user who did it. */
  readonly by?: string;
  /** Of a message that was taken back: nobody did, its time was over. */
  readonly expired?: boolean;
}

/** When a message disappears. */
export interface ExpiresAt {
  /** At the latest at this time, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** Before that, so many seconds after every other member has read it. */
  readonly after_read_s?: number;
}

/** One entry of a conversation's timeline. */
export interface Entry {
  /** The conversation whose timeline it stands in. */
  readonly conversation: string;
  /** 1, 2, 3, … within the conversation, without a hole. */
  readonly seq: number;
  /** An `EntryKind`, or a word of a newer server. */
  readonly kind: string;
  /** Milliseconds since 1970 UTC. */
  readonly at: number;
  /** Absent when the app server acted. */
  readonly from?: string;
  /** Of what an account did: the agent who acted for it, where the reader may know. */
  readonly agent?: string;
  /** The id that its sender gave it. */
  readonly client_msg_id?: string;
  /** The app's kind of content, `text` for most. */
  readonly type: string;
  /** The content, as it is now; null once it was recalled. */
  readonly body: Json;
  /** The users whom it mentions; `@all` for everybody. */
  readonly mentions?: readonly string[];
  /** It is neither counted as unread nor pushed to offline devices. */
  readonly silent?: boolean;
  /** The app server's hook has hidden it: to all but its sender it has no content. */
  readonly hidden?: boolean;
  /** Of an `edit`, `recall`, `reactions` or `pins`: the message that it changes. */
  readonly target?: number;
  /** Of an edited message 2, 3, …; of an `edit` the version that it made. */
  readonly version?: number;
  /** When it was edited last, in milliseconds since 1970 UTC. */
  readonly edited_at?: number;
  /** Who edited it last. */
  readonly edited_by?: string;
  /** Who took it back, and when. */
  readonly recalled?: Mark;
  /** What users reacted with, the most frequent first. */
  readonly reactions?: readonly Reaction[];
  /** The message that it answers. */
  readonly reply_to?: ReplyQuote;
  /** Who pinned it, and when. */
  readonly pinned?: Mark;
  /** A message that still grows, or whose sender was lost; absent once it ended. */
  readonly stream?: "open" | "interrupted";
  /** When it disappears. */
  readonly expires?: ExpiresAt;
  /** Of a `recall`: nobody took the message back, its time was over. */
  readonly expired?: boolean;
}

/** Two users; a group with members; an official account whose followers read. */
export type ConversationKind = "direct" | "group" | "official";
/** What a member may do in a conversation. */
export type Role = "member" | "admin" | "owner";

/** A conversation in a user's list. */
export interface ConversationView {
  /** The conversation's id. */
  readonly id: string;
  /** Between whom it is. */
  readonly kind: ConversationKind;
  /** What this user is in it. */
  readonly role: Role;
  /** Its name, for all members. */
  readonly name?: string;
  /** The address or the app's name of its picture. */
  readonly avatar?: string;
  /** The newest entry; 0: there is none. */
  readonly last_seq: number;
  /** When the newest entry came, in milliseconds since 1970 UTC. */
  readonly last_at: number;
  /** The newest entry, of whatever kind. */
  readonly last_entry?: Entry;
  /** The newest message that was not recalled. */
  readonly last_message?: Entry;
  /** This user has read up to here. */
  readonly read_seq: number;
  /** Others' messages after `read_seq` that are not silent; at least so many if `unread_capped`. */
  readonly unread: number;
  /** There are more unread messages than the server counts. */
  readonly unread_capped?: boolean;
  /** How many of those mention this user. */
  readonly mentions: number;
  /** The user wants no notice of its messages. */
  readonly muted: boolean;
  /** When the mute ends, in milliseconds since 1970 UTC; absent: it does not end by itself. */
  readonly muted_until?: number;
  /** When the user pinned it to the top of the list. */
  readonly pinned_at?: number;
  /** The user put it away: it stands in the archive alone. */
  readonly archived?: boolean;
  /** The user does not want to see it before its next message. */
  readonly hidden?: boolean;
  /** The user's own name for it. */
  readonly title?: string;
  /** The user marked it as unread, whatever its count. */
  readonly marked_unread?: boolean;
  /** The user has cleared the history up to here. */
  readonly cleared_seq?: number;
  /** Of a conversation with an account that answers: the account. */
  readonly account?: string;
  /** In the account's list: the agent who has the conversation; absent: nobody. */
  readonly assigned_to?: string;
}

/** How a user is shown. */
export interface UserCard {
  /** The user's id. */
  readonly id: string;
  /** For display. */
  readonly name?: string;
  /** The address or the app's name of a picture. */
  readonly avatar?: string;
}

/** A part of a timeline, oldest first. */
export interface HistoryPage {
  readonly entries: readonly Entry[];
  /** The cursor of the page of newer entries. */
  readonly next?: string;
  /** The cursor of the page of older entries. */
  readonly previous?: string;
  readonly more: boolean;
  /** The senders of the entries. */
  readonly users?: readonly UserCard[];
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
  /** The conversation, also when the message went to a user. */
  readonly conversation: string;
  /** The number of the entry that was made. */
  readonly seq: number;
  /** When the server took it, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** Of an edit, a recall, or the end of a message that grew: the message's version after it, also when others have edited it since. */
  readonly version?: number;
  /** The server had it already: this is the first result. */
  readonly duplicate?: boolean;
}
