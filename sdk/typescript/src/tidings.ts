// The client, as an app uses it.
import type { Conversation } from "./conversation.js";
import type { TidingsError } from "./errors.js";
import type { SentMessage } from "./message.js";
import type { Observable } from "./observable.js";
import type { WebSocketConstructor } from "./session/socket.js";
import type { TransportName } from "./session/transport.js";
import type { KeyValueStorage } from "./storage/storage.js";
import type { ConversationView, Entry } from "./wire/entries.js";
import type { ListFilter } from "./wire/client-frames.js";
import type { PopupDecision, PopupEvent, PopupQuestion, Push } from "./wire/popups.js";
import type { PresenceChange } from "./wire/server-frames.js";

export interface ConnectOptions {
  /** The server: `https://chat.example.com`; `wss://…/v1/connect` is understood, too. */
  readonly url: string;
  /**
   * A token of the user, signed by the app's server. Asked at each connect, and before the token expires. A rejection is tried
   * again later; `null` says that the user has signed out and ends the client.
   */
  readonly token: () => Promise<string | null>;
  /** Names the device. Without it one is made up and kept: one for all tabs where they share a connection. */
  readonly deviceId?: string;
  /** `web` when absent. */
  readonly deviceKind?: string;
  readonly appVersion?: string;
  /** This device takes pushes. */
  readonly push?: boolean;
  /** Where messages, the list, the cursor and what is not sent are kept. In memory when absent. */
  readonly storage?: KeyValueStorage;
  /**
   * Tabs of one browser share one connection (default, where the browser has Web Locks and BroadcastChannel and no `WebSocket` is
   * given). `false`: each tab has its own connection and is its own device.
   */
  readonly shareTabs?: boolean;
  /** Node 20 has none of its own: give it `WebSocket` of the package `ws`. */
  readonly WebSocket?: WebSocketConstructor;
  readonly fetch?: typeof fetch;
  /**
   * What may carry the session, the better one first. Both by default: an event stream takes the place of a WebSocket where the network
   * lets none through, and WebSockets are tried again later.
   */
  readonly transports?: readonly TransportName[];
}

export type ConnectionStatus =
  | { readonly state: "connecting" }
  | { readonly state: "online"; readonly session: string }
  /** Connects again by itself at about `retryAt` (by this device's clock). */
  | { readonly state: "away"; readonly retryAt: number; readonly cause: TidingsError }
  /** Does not connect again by itself: `error.code` says why (`replaced`, `kicked`, `unauthorized`, `closed`, …). */
  | { readonly state: "ended"; readonly error: TidingsError };

export interface ConversationsSnapshot {
  /** Pinned ones first, then the latest active. Hidden and archived ones are not among them. */
  readonly items: readonly ConversationView[];
  /** Unread messages in all loaded conversations that are not muted. */
  readonly unread: number;
  /** Those that mention this user, in muted ones, too. */
  readonly mentions: number;
  readonly hasMore: boolean;
  readonly state: "loading" | "ready";
}

export interface Conversations extends Observable<ConversationsSnapshot> {
  /** Loads the next page of the list. */
  loadMore(): Promise<void>;
  /**
   * Reads one filtered page. Which lines it has is not kept up to date; `conversation(id).view` of each is, also of archived ones, which
   * are known to the client only once they were read here.
   */
  page(filter: ListFilter, after?: string, limit?: number): Promise<{ readonly conversations: readonly ConversationView[]; readonly next?: string }>;
}

export interface Presence {
  /** Watches users with whom a direct conversation exists, or members of the group `conversation`. The returned function ends it. */
  watch(users: readonly string[], conversation?: string): () => void;
  /** What is known of a user; undefined when nobody watches. */
  of(user: string): Observable<PresenceChange | undefined>;
}

export interface Popups {
  /** Which popup is due at this placement? Without `show` none is; `retryAfterMs` says when one could be. */
  ask(question: PopupQuestion): Promise<{ readonly show?: PopupDecision; readonly retryAfterMs?: number }>;
  /** Tells what the user did; kept and tried again until the server has it. */
  report(events: readonly PopupEvent[]): Promise<void>;
}

export interface TidingsEvents {
  /** A message that came, in the order of its conversation, once. Not those of pages that were loaded. */
  message: SentMessage;
  typing: { readonly conversation: string; readonly user: string };
  /** Somebody's read mark moved: this user's on another device. */
  read: { readonly conversation: string; readonly user: string; readonly seq: number };
  membership: { readonly conversation: string; readonly member: boolean };
  presence: readonly PresenceChange[];
  /** A popup that the app's server triggered. */
  popup: PopupDecision;
  /** Data from the business, once for each push in this page's life; the client has acknowledged it. */
  push: Push;
  /** What this device held was of another history of the store: everything is read anew. */
  reset: Record<string, never>;
  /** So much was missed in a conversation that its entries were not fetched one by one; `messages` begins anew after them. */
  skipped: { readonly conversation: string; readonly from_seq: number; readonly to_seq: number };
  /** The storage failed or is full: the client goes on in memory. */
  storage: TidingsError;
  /** A failure that no promise tells, for the app's log. */
  error: TidingsError;
}

export interface Tidings {
  /** Whose session it is. */
  readonly user: string;
  readonly status: Observable<ConnectionStatus>;
  readonly conversations: Conversations;
  readonly presence: Presence;
  readonly popups: Popups;

  /** The conversation of this id: the same object each time. */
  conversation(id: string): Conversation;
  /** The direct conversation with a user; the first message opens it. */
  direct(user: string): Conversation;
  createGroup(group: { readonly id?: string; readonly name?: string; readonly members: readonly string[] }): Promise<Conversation>;
  /** Messages that mention this user, newest first. */
  mentions(page?: { readonly after?: string; readonly limit?: number }): Promise<{ readonly mentions: readonly Entry[]; readonly next?: string }>;

  on<Name extends keyof TidingsEvents>(event: Name, listener: (value: TidingsEvents[Name]) => void): () => void;
  /** Connects now: after `ended`, or without waiting for `retryAt` (the network is back). */
  reconnect(): void;
  /** Any call of the HTTP API with the user's token: `tidings.http("GET", "/v1/users/me")`. */
  http(method: string, path: string, body?: unknown): Promise<unknown>;
  /** Ends the session, this tab's use of it when tabs share one. */
  close(): Promise<void>;
}

export type Connect = (options: ConnectOptions) => Promise<Tidings>;
