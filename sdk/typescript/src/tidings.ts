// The client, as an app uses it.
import type { ServiceWorkerRegistrationLike } from "./chat/offline-push.js";
import type { Conversation } from "./conversation.js";
import type { TidingsError } from "./errors.js";
import type { SentMessage } from "./message.js";
import type { Observable } from "./observable.js";
import type { WebSocketConstructor } from "./session/socket.js";
import type { TransportName } from "./session/transport.js";
import type { KeyValueStorage } from "./storage/storage.js";
import type { ConversationView, Entry, UserCard } from "./wire/entries.js";
import type { Attention, ListFilter } from "./wire/client-frames.js";
import type { Json } from "./wire/json.js";
import type { PopupDecision, PopupEvent, PopupQuestion, Push } from "./wire/popups.js";
import type { PushToken } from "./wire/push-tokens.js";
import type { PresenceChange } from "./wire/server-frames.js";

/** What a client needs to know. */
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
  /** Shown to the app's server in the list of devices; at most 32 bytes. */
  readonly appVersion?: string;
  /** This device takes pushes. */
  readonly push?: boolean;
  /** The server leaves out of an entry what the one before it has, too: fewer bytes where much is said at once. */
  readonly compact?: boolean;
  /** Where messages, the list, the cursor and what is not sent are kept. In memory when absent. */
  readonly storage?: KeyValueStorage;
  /**
   * Tabs of one browser share one connection (default, where the browser has Web Locks and BroadcastChannel and no `WebSocket` is
   * given). `false`: each tab has its own connection and is its own device.
   */
  readonly shareTabs?: boolean;
  /** Node 20 has none of its own: give it `WebSocket` of the package `ws`. */
  readonly WebSocket?: WebSocketConstructor;
  /** In place of the runtime's own. It hands bodies on as they come, or `transports` names WebSockets alone. */
  readonly fetch?: typeof fetch;
  /**
   * What may carry the session, the better one first. Both by default: an event stream takes the place of a WebSocket where the network
   * lets none through, and WebSockets are tried again later. WebSockets alone where `fetch` answers only when a body is whole, as in
   * React Native.
   */
  readonly transports?: readonly TransportName[];
}

/** Whether there is a connection, and what follows when there is none; `state` tells which fields it has. */
export type ConnectionStatus = Connecting | Online | Away | Ended;

/** An attempt is under way. */
export interface Connecting {
  /** Tells the states apart. */
  readonly state: "connecting";
}

/** The session is live. */
export interface Online {
  /** Tells the states apart. */
  readonly state: "online";
  /** The server's name of the session. */
  readonly session: string;
}

/** There is no connection; the client connects again by itself. */
export interface Away {
  /** Tells the states apart. */
  readonly state: "away";
  /** About when it connects again, in milliseconds since 1970 UTC by this device's clock. */
  readonly retryAt: number;
  /** Why the connection ended, or could not be made. */
  readonly cause: TidingsError;
}

/** There is no connection, and the client does not connect again before `reconnect` is called. */
export interface Ended {
  /** Tells the states apart. */
  readonly state: "ended";
  /** Its `code` says why: `replaced`, `kicked`, `unauthorized`, `closed`, … */
  readonly error: TidingsError;
}

/** The loaded part of the user's list, and what is unread in all of it. */
export interface ConversationsSnapshot {
  /** Pinned ones first, then the latest active. Hidden and archived ones are not among them. */
  readonly items: readonly ConversationView[];
  /** Unread messages in all conversations that are not muted, those that are not loaded included. */
  readonly unread: number;
  /** Those that mention this user, in muted ones, too. */
  readonly mentions: number;
  /** There are more: `loadMore` loads them. */
  readonly hasMore: boolean;
  /** `loading` until the list was read once. */
  readonly state: "loading" | "ready";
}

/** A page of conversations. */
export interface ConversationsPage {
  /** In the order of the list. */
  readonly conversations: readonly ConversationView[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** The user's list of conversations. It keeps itself right. */
export interface Conversations extends Observable<ConversationsSnapshot> {
  /** Loads the next page of the list. */
  loadMore(): Promise<void>;
  /**
   * A page of the conversations that a text is found in: in the user's own title, the name, or of a direct conversation the other user's
   * name. The server looks at 2,000 conversations for a page: it may be empty and lead on.
   */
  search(text: string, page?: { readonly filter?: ListFilter; readonly after?: string; readonly limit?: number }): Promise<ConversationsPage>;
  /** Moves this user's read marks in all conversations to the newest entries. */
  readAll(): Promise<void>;
  /**
   * Reads one filtered page. Which lines it has is not kept up to date; `conversation(id).view` of each is, also of archived ones, which
   * are known to the client only once they were read here.
   */
  page(filter: ListFilter, after?: string, limit?: number): Promise<ConversationsPage>;
}

/** Which conversations of an account. */
export interface AccountListOptions {
  /** Those that this agent has: an id, or `@me`; `@nobody`: those that nobody has. All when absent. */
  readonly assignedTo?: string;
  /** Those with unread messages, and the like. */
  readonly filter?: ListFilter;
  /** The `next` of the page before. */
  readonly after?: string;
  /** At most 200. */
  readonly limit?: number;
}

/**
 * An account that answers, as one of its agents sees it. Its conversations are apart from the agent's own list, and used like any other:
 * `tidings.conversation(id)` sends, edits and marks as read as the account, with `agent` at each message for the other agents.
 */
export interface Account {
  /** The account's id. */
  readonly id: string;
  /**
   * A page of the account's conversations as they are now, the latest active first. Read it again when the events `message` and
   * `assignment` tell of a change, or after `online`.
   */
  conversations(options?: AccountListOptions): Promise<ConversationsPage>;
}

/** Who is online. */
export interface Presence {
  /** Watches users with whom a direct conversation exists, or members of the group `conversation`. The returned function ends it. */
  watch(users: readonly string[], conversation?: string): () => void;
  /** What is known of a user; undefined when nobody watches. */
  of(user: string): Observable<PresenceChange | undefined>;
}

/** Names and pictures of users. */
export interface Users {
  /**
   * How a user is shown: undefined until it is known, with the id alone if there is no such user. Users who are subscribed to together are
   * asked for together. It follows changes of users whose presence is watched; others are asked for again after each connect.
   */
  of(user: string): Observable<UserCard | undefined>;
  /** Blocks a user: neither writes to the other in their direct conversation, and the other does not see when this user is online. */
  block(user: string): Promise<void>;
  /** Ends a block. */
  unblock(user: string): Promise<void>;
  /** The users whom this user blocks, a page of them. */
  blocked(page?: { readonly after?: string; readonly limit?: number }): Promise<BlocksPage>;
}

/** A user whom this user blocks. */
export interface BlockedUser {
  /** The user's id. */
  readonly user: string;
  /** Since when, in milliseconds since 1970 UTC. */
  readonly at: number;
}

/** A page of users whom this user blocks. */
export interface BlocksPage {
  /** Those of this page. */
  readonly users: readonly BlockedUser[];
  /** The `after` of the next page; absent: this is the last. */
  readonly next?: string;
}

/** Whether a popup is due. */
export interface PopupAnswer {
  /** The popup; it counts as shown. */
  readonly show?: PopupDecision;
  /** In how many milliseconds one could be due, if time alone can tell. */
  readonly retryAfterMs?: number;
}

/** What an app shows to its users at places of its own. */
export interface Popups {
  /** Which popup is due at this placement? Without `show` none is; `retryAfterMs` says when one could be. */
  ask(question: PopupQuestion): Promise<PopupAnswer>;
  /** Tells what the user did; kept and tried again until the server has it. */
  report(events: readonly PopupEvent[]): Promise<void>;
}

/** What a browser needs to know to subscribe. */
export interface WebPushOptions {
  /** The server's setting `web_push.public_key`. */
  readonly publicKey: string;
  /** The service worker that shows notifications: the page's own (`navigator.serviceWorker.ready`) when absent. */
  readonly registration?: ServiceWorkerRegistrationLike;
}

/** How messages reach this device while its user has no session: as notifications, by the push service of its provider. */
export interface OfflinePush {
  /** The device that this client binds with, and that tokens are registered for. */
  readonly deviceId: string;
  /** Registers the token by which a provider reaches this device, in place of its former one. */
  register(token: PushToken): Promise<void>;
  /**
   * Subscribes this browser, asks for the permission to show notifications where that is open, and registers the subscription. One that was
   * made with another key is replaced. Rejects with `notifications_denied`, `notifications_unsupported` or `notifications_failed`. Waits
   * for as long as the page has no service worker. Call it from a click the first time, since browsers ask nothing otherwise, and at each
   * start after that: a browser may renew a subscription.
   */
  subscribe(options: WebPushOptions): Promise<void>;
  /** Messages no longer reach this device, and its browser's subscription ends. Call it while the user is still signed in. */
  forget(options?: { readonly registration?: ServiceWorkerRegistrationLike }): Promise<void>;
}

/** Somebody types. */
export interface TypingEvent {
  /** Where. */
  readonly conversation: string;
  /** Who. */
  readonly user: string;
}

/** Somebody signals something to those who are there. Nothing is kept. */
export interface SignalEvent {
  /** Where. */
  readonly conversation: string;
  /** Who; absent: your server. */
  readonly user?: string;
  /** The app's own kind of signal. */
  readonly type: string;
  /** What `signal` was given; null when it was given nothing. */
  readonly body: Json;
}

/** A read mark moved. */
export interface ReadEvent {
  /** Where. */
  readonly conversation: string;
  /** Whose. */
  readonly user: string;
  /** Everything up to here is read. */
  readonly seq: number;
}

/** This user joined or left. */
export interface MembershipEvent {
  /** What. */
  readonly conversation: string;
  /** Whether the user is in it now. */
  readonly member: boolean;
}

/** A conversation with an account was given to another agent. */
export interface AssignmentEvent {
  /** Which. */
  readonly conversation: string;
  /** The agent who has it now; null: nobody. */
  readonly assignedTo: string | null;
  /** The agent who did it; absent when the app server did. */
  readonly by?: string;
  /** When, in milliseconds since 1970 UTC. */
  readonly at: number;
}

/** A part of a timeline that was not fetched. */
export interface SkippedEvent {
  /** Whose timeline. */
  readonly conversation: string;
  /** Its first entry. */
  readonly from_seq: number;
  /** Its last entry. */
  readonly to_seq: number;
}

/** What `on` tells, by name. */
export interface TidingsEvents {
  /** A message that came, in the order of its conversation, once. Not those of pages that were loaded. */
  message: SentMessage;
  /** Somebody types in a conversation of this user. */
  typing: TypingEvent;
  /** A signal of another member, or of your server. */
  signal: SignalEvent;
  /** Somebody's read mark moved: this user's on another device. */
  read: ReadEvent;
  /** This user is in a conversation now, or no longer. */
  membership: MembershipEvent;
  /** A conversation with an account was given to another agent: for its agents, and for its user where the account shows agents. */
  assignment: AssignmentEvent;
  /** Users who are watched came or went. */
  presence: readonly PresenceChange[];
  /** A popup that the app's server triggered. */
  popup: PopupDecision;
  /** Data from the business, once for each push in this page's life; the client has acknowledged it. */
  push: Push;
  /** What this device held was of another history of the store: everything is read anew. */
  reset: Record<string, never>;
  /** So much was missed in a conversation that its entries were not fetched one by one; `messages` begins anew after them. */
  skipped: SkippedEvent;
  /** The storage failed or is full: the client goes on in memory. */
  storage: TidingsError;
  /** A failure that no promise tells, for the app's log. */
  error: TidingsError;
}

/** A page of mentions. */
export interface MentionsPage {
  /** Messages that mention the user, newest first. */
  readonly mentions: readonly Entry[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** The client of one user: everything that an app has of Tidings. */
export interface Tidings {
  /** Whose session it is. */
  readonly user: string;
  /** Whether there is a connection. */
  readonly status: Observable<ConnectionStatus>;
  /** The user's list. */
  readonly conversations: Conversations;
  /** Who is online. */
  readonly presence: Presence;
  /** Names and pictures. */
  readonly users: Users;
  /** What the app shows at places of its own. */
  readonly popups: Popups;
  /** Notifications on this device while its user is away. */
  readonly offlinePush: OfflinePush;

  /** The conversation of this id: the same object each time. */
  conversation(id: string): Conversation;
  /** The direct conversation with a user; the first message opens it. */
  direct(user: string): Conversation;
  /** Makes a group that this user owns. */
  createGroup(group: { readonly id?: string; readonly name?: string; readonly members: readonly string[] }): Promise<Conversation>;
  /** Makes this user a member of a group by the token of an invite. */
  joinByInvite(token: string): Promise<Conversation>;
  /** An account that this user answers for; who is no agent of it is refused when it asks. */
  account(id: string): Account;
  /** Messages that mention this user, newest first. */
  mentions(page?: { readonly after?: string; readonly limit?: number }): Promise<MentionsPage>;

  /** Calls `listener` for each event of a name, until the returned function is called. */
  on<Name extends keyof TidingsEvents>(event: Name, listener: (value: TidingsEvents[Name]) => void): () => void;
  /**
   * Whether somebody looks at the app: in the background, messages go out by offline push as well. In a browser pages tell it by
   * themselves; an app of another kind calls this when the system lets it know.
   */
  attend(attention: Attention): void;
  /** Connects now: after `ended`, or without waiting for `retryAt` (the network is back). */
  reconnect(): void;
  /** Any call of the HTTP API with the user's token: `tidings.http("GET", "/v1/users/me")`. */
  http(method: string, path: string, body?: unknown): Promise<unknown>;
  /** Ends the session, this tab's use of it when tabs share one. */
  close(): Promise<void>;
}

/** What `connect` is. */
export type Connect = (options: ConnectOptions) => Promise<Tidings>;
