// The frames that a client sends: one union, told apart by `t`.
import type { Json } from "./json.js";
import type { PopupEvent, PopupQuestion } from "./popups.js";

/** When a message disappears: what comes first of the two. */
export interface Expires {
  /** So many seconds after it is stored. */
  readonly after_s?: number;
  /** So many seconds after every other member has read it. */
  readonly after_read_s?: number;
}

/** What a send, and the beginning of a growing message, say of the message. */
export interface NewMessage {
  readonly body: Json;
  readonly type?: string;
  readonly client_msg_id?: string;
  readonly mentions?: readonly string[];
  readonly silent?: boolean;
  readonly skip_push?: boolean;
  readonly reply_to?: number;
  readonly expires?: Expires;
}

/** Where a message goes: to a conversation, or to a user with whom a direct one is opened if need be. */
export type Destination = { readonly conversation: string } | { readonly to: string };

export interface BindFrame {
  readonly t: "bind";
  readonly token: string;
  readonly device_id: string;
  readonly device_kind?: string;
  readonly app_version?: string;
  readonly push?: boolean;
  readonly compact?: boolean;
  readonly cursor?: string;
}

/** A user's own settings of one conversation of the list. */
export interface Preferences {
  /** Stands at the top of the list. */
  readonly pinned?: boolean;
  /** Stands in the archive alone. */
  readonly archived?: boolean;
  /** Is not shown before its next message. */
  readonly hidden?: boolean;
  /** The user's own name for it; null takes it away. */
  readonly title?: string | null;
  /** Is shown as unread, whatever its count. */
  readonly marked_unread?: boolean;
  /** The history up to here is gone for this user. */
  readonly clear_to_seq?: number;
}

export interface HistoryQuery {
  readonly from_seq?: number;
  readonly to_seq?: number;
  readonly from_time?: number;
  readonly to_time?: number;
  readonly cursor?: string;
  readonly limit?: number;
}

/** Which conversations of the list: those with unread messages, those that mention the user, those that were put away. */
export type ListFilter = "unread" | "mentions" | "archived";

/** Frames that are answered; the link gives each a `ref`. */
export type RequestFrame =
  | ({ readonly t: "send" } & NewMessage & Destination)
  | { readonly t: "read"; readonly conversation: string; readonly seq: number }
  | ({ readonly t: "history"; readonly conversation: string } & HistoryQuery)
  | {
      readonly t: "conversations";
      readonly after?: string;
      readonly limit?: number;
      readonly filter?: ListFilter;
      readonly conversation?: string;
      readonly search?: string;
      readonly account?: string;
      readonly assigned_to?: string;
    }
  | { readonly t: "unread" }
  | { readonly t: "receipts"; readonly conversation: string }
  | { readonly t: "watch_presence"; readonly users: readonly string[]; readonly conversation?: string }
  | { readonly t: "unwatch_presence"; readonly users?: readonly string[] }
  | { readonly t: "popup"; readonly question: PopupQuestion }
  | { readonly t: "popup_events"; readonly events: readonly PopupEvent[] }
  | { readonly t: "refresh"; readonly token: string }
  | { readonly t: "ping" }
  | {
      readonly t: "edit";
      readonly conversation: string;
      readonly seq: number;
      readonly body: Json;
      readonly type?: string;
      readonly mentions?: readonly string[];
      readonly if_version?: number;
      readonly client_msg_id?: string;
    }
  | { readonly t: "recall"; readonly conversation: string; readonly seq: number }
  | {
      readonly t: "react";
      readonly conversation: string;
      readonly seq: number;
      readonly key: string;
      readonly remove?: boolean;
    }
  | { readonly t: "pin"; readonly conversation: string; readonly seq: number; readonly remove?: boolean }
  | ({ readonly t: "preferences"; readonly conversation: string } & Preferences)
  | {
      readonly t: "assign";
      readonly conversation: string;
      readonly assigned_to: string | null;
      readonly if_assigned_to?: string | null;
    }
  | ({ readonly t: "stream_begin" } & NewMessage & Destination)
  | { readonly t: "stream_end"; readonly conversation: string; readonly seq: number; readonly body?: Json };

/** Whether somebody looks at the app. */
export type Attention = "foreground" | "background";

/** Frames that are not answered. */
export type NoticeFrame =
  | { readonly t: "typing"; readonly conversation: string }
  | { readonly t: "signal"; readonly conversation: string; readonly type: string; readonly body?: Json }
  | { readonly t: "ack"; readonly pushes: readonly number[] }
  | { readonly t: "stored"; readonly cursor: string }
  | { readonly t: "attention"; readonly state: Attention }
  | {
      readonly t: "stream_append";
      readonly conversation: string;
      readonly seq: number;
      readonly offset: number;
      readonly text: string;
    }
  | { readonly t: "unbind" };

export type ClientFrame = BindFrame | (RequestFrame & { readonly ref?: number }) | NoticeFrame;

/** Every `t` that this client can send. */
export const CLIENT_FRAMES = [
  "bind", "send", "read", "history", "conversations", "unread", "receipts", "watch_presence", "unwatch_presence", "popup", "popup_events",
  "refresh", "ping", "edit", "recall", "react", "pin", "preferences", "assign", "stream_begin", "stream_end", "typing", "signal", "ack",
  "stored", "attention", "stream_append", "unbind",
] as const satisfies readonly ClientFrame["t"][];
