// The frames that a server sends: one union, told apart by `t`.
import type { Json } from "./json.js";
import type { ConversationView, Entry, HistoryPage, MissedRange, SendReceipt, UserCard } from "./entries.js";
import type { PopupDecision, Push } from "./popups.js";

/** How a resume went. */
export interface Resume {
  readonly complete: boolean;
  readonly ranges?: readonly MissedRange[];
  /** Conversations of which entries that were missed are gone for good: what is left begins at `first_seq`. */
  readonly removed?: readonly { readonly conversation: string; readonly first_seq: number }[];
  readonly reset?: boolean;
}

export interface BoundFrame {
  readonly t: "bound";
  readonly session: string;
  readonly user: string;
  readonly heartbeat_ms: number;
  readonly cursor: string;
  readonly resume: Resume;
  readonly expires_at?: number;
  readonly pushes?: boolean;
}

export interface ErrorFrame {
  readonly t: "error";
  readonly ref?: number;
  readonly code: string;
  readonly message: string;
  readonly retry: boolean;
  readonly retry_after_ms?: number;
  /** The code of the app server's own, of `refused_by_hook`. */
  readonly reason?: string;
}

/** Whether a user is online. */
export interface PresenceChange {
  /** The user. */
  readonly user: string;
  /** Whether one of the user's sessions is live. */
  readonly online: boolean;
  /** Whether somebody looks at one of them, as far as their apps say so. */
  readonly active?: boolean;
  /** When offline: the end of the last session, in milliseconds since 1970 UTC. */
  readonly last_seen?: number;
}

/** How far a member has come. */
export interface ReceiptMark {
  /** The member. */
  readonly user: string;
  /** Everything up to here is read. */
  readonly read_seq?: number;
  /** Everything up to here has reached a device. */
  readonly delivered_seq?: number;
}

/** Anonymous receipts: so many members moved over these messages. */
export interface ReceiptMove {
  readonly what: "read" | "delivered";
  readonly from_seq: number;
  readonly to_seq: number;
  readonly count: number;
}

export interface HistoryFrame extends HistoryPage {
  readonly t: "history";
  readonly ref?: number;
  readonly conversation: string;
}

export interface ConversationsFrame {
  readonly t: "conversations";
  readonly ref?: number;
  readonly conversations: readonly ConversationView[];
  readonly next?: string;
  readonly users?: readonly UserCard[];
}

export interface ReceiptsFrame {
  readonly t: "receipts";
  readonly ref?: number;
  readonly conversation: string;
  readonly marks?: readonly ReceiptMark[];
  readonly moved?: readonly ReceiptMove[];
}

/** What is unread in one conversation. */
export interface UnreadLine {
  readonly conversation: string;
  readonly unread: number;
  readonly mentions: number;
  readonly muted?: boolean;
}

export interface UnreadFrame {
  readonly t: "unread";
  readonly ref?: number;
  readonly unread: number;
  readonly mentions: number;
  readonly conversations: number;
  readonly capped?: boolean;
  readonly lines: readonly UnreadLine[];
}

export interface SentFrame {
  readonly t: "sent";
  readonly results: readonly (SendReceipt & { readonly ref?: number })[];
}

export interface MessagesFrame {
  readonly t: "messages";
  readonly entries: readonly Entry[];
  readonly cursor: string;
}

export interface PopupFrame {
  readonly t: "popup";
  readonly ref?: number;
  readonly show?: PopupDecision | null;
  readonly retry_after_ms?: number | null;
}

export interface PresenceFrame {
  readonly t: "presence";
  readonly ref?: number;
  readonly changes: readonly PresenceChange[];
}

export interface StreamFrame {
  readonly t: "stream";
  readonly conversation: string;
  readonly seq: number;
  /** How many bytes (UTF-8) came before `text`. */
  readonly offset: number;
  readonly text: string;
}

export type PushFrame = { readonly t: "push" } & Push;

export type ServerFrame =
  | BoundFrame
  | ErrorFrame
  | MessagesFrame
  | SentFrame
  | { readonly t: "ok"; readonly ref: number }
  | { readonly t: "pong"; readonly ref?: number }
  /** The answer to a `stream_append` with a `ref`. This client gives none. */
  | { readonly t: "appended"; readonly ref?: number; readonly offset: number }
  | { readonly t: "read"; readonly conversation: string; readonly user: string; readonly seq: number }
  | { readonly t: "typing"; readonly conversation: string; readonly user: string }
  | { readonly t: "signal"; readonly conversation: string; readonly user?: string; readonly type: string; readonly body: Json }
  | { readonly t: "membership"; readonly conversation: string; readonly member: boolean }
  | PresenceFrame
  | PushFrame
  | PopupFrame
  | HistoryFrame
  | ConversationsFrame
  | { readonly t: "reconnect"; readonly after_ms: number }
  | ReceiptsFrame
  | UnreadFrame
  | { readonly t: "user"; readonly user: UserCard }
  | { readonly t: "conversation"; readonly conversation: ConversationView }
  | StreamFrame;

/** Every `t` that this client understands; others are skipped. */
export const SERVER_FRAMES = [
  "bound", "error", "messages", "sent", "ok", "pong", "read", "typing", "signal", "membership", "presence", "push", "popup",
  "history", "conversations", "reconnect", "receipts", "conversation", "stream", "appended", "unread", "user",
] as const satisfies readonly ServerFrame["t"][];
