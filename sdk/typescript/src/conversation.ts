// One conversation, as an app uses it.
import type { TimelineItem } from "./message.js";
import type { Observable } from "./observable.js";
import type { ConversationView, Entry, Role, SendReceipt } from "./wire/entries.js";
import type { Preferences } from "./wire/client-frames.js";
import type { Json } from "./wire/json.js";

/** What is loaded of a timeline: always one unbroken range up to its newest entry, then what is not sent yet. */
export interface MessagesSnapshot {
  /** Oldest first. Pending and refused messages of this user stand last. */
  readonly items: readonly TimelineItem[];
  /** There is more before the first item. */
  readonly hasOlder: boolean;
  /** `idle` until somebody subscribes or `load` is called; `failed` when the user may not read it. */
  readonly state: "idle" | "loading" | "ready" | "failed";
  /** Why it failed: a code of the server. */
  readonly failure?: string;
}

export interface Messages extends Observable<MessagesSnapshot> {
  /** Loads the newest page, if it is not loaded. Subscribing does this, too. */
  load(): Promise<void>;
  /** Loads the page before the first item, of `limit` entries (50 when absent, 500 at most); does nothing without one. */
  loadOlder(limit?: number): Promise<void>;
}

export interface SendOptions {
  /** The app's own kind of content; `text` when absent. */
  readonly type?: string;
  readonly mentions?: readonly string[];
  /** Neither counted as unread nor pushed to offline devices. */
  readonly silent?: boolean;
  /** Counted as unread, but not pushed to offline devices. */
  readonly skipPush?: boolean;
  /** The `seq` of the message that this one answers. */
  readonly replyTo?: number;
  /** Made up when absent. A send with an id that was used before answers with the first result. */
  readonly clientMsgId?: string;
}

export interface EditOptions {
  readonly type?: string;
  readonly mentions?: readonly string[];
  /** Refused with `version_conflict` when the message has another version by now. */
  readonly ifVersion?: number;
}

/** How far members have come, in conversations that show it. */
export interface ReceiptsSnapshot {
  /** By user: the newest entry that reached a device, and the newest that was read. */
  readonly marks: ReadonlyMap<string, { readonly delivered: number; readonly read: number }>;
  /** In conversations that only count: by `seq`, how many were moved over it since this client came. */
  readonly counts: ReadonlyMap<number, { readonly delivered: number; readonly read: number }>;
}

export interface MessageReceipts {
  readonly delivered: number;
  readonly read: number;
  readonly members: number;
  readonly receipts?: readonly { readonly user: string; readonly delivered: boolean; readonly read: boolean }[];
}

export interface Member {
  readonly user: string;
  readonly role: Role;
}

export interface MessageVersion {
  readonly version: number;
  readonly at: number;
  readonly by?: string;
  readonly type: string;
  readonly body: Json;
}

/** A message that grows while it is read, as the answers of assistants do. */
export interface GrowingMessage {
  readonly conversation: string;
  readonly seq: number;
  /** Adds text at the end. */
  append(text: string): void;
  /** Ends it; `body` replaces what has grown. */
  end(body?: Json): Promise<SendReceipt>;
}

export interface Conversation {
  readonly id: string;
  readonly messages: Messages;
  /** The conversation's line in the user's list; undefined while the user has none. */
  readonly view: Observable<ConversationView | undefined>;
  /** Who types now, without this user. */
  readonly typingUsers: Observable<readonly string[]>;
  readonly receipts: Observable<ReceiptsSnapshot>;

  /**
   * Sends a message. It stands in `messages` at once as pending, also while there is no connection; the promise settles when the
   * server has it for good, or refuses it. Nobody needs to look at the promise: the message tells the same.
   */
  send(body: Json, options?: SendOptions): Promise<SendReceipt>;
  /** Tries a refused message again. */
  retry(clientMsgId: string): void;
  /** Removes a refused message, or a pending one that was not sent yet; answers whether it is gone. */
  discard(clientMsgId: string): boolean;
  /** Begins a message that grows. */
  stream(body: Json, options?: SendOptions): Promise<GrowingMessage>;

  edit(seq: number, body: Json, options?: EditOptions): Promise<SendReceipt>;
  recall(seq: number): Promise<SendReceipt>;
  react(seq: number, key: string): Promise<void>;
  unreact(seq: number, key: string): Promise<void>;
  pin(seq: number): Promise<void>;
  unpin(seq: number): Promise<void>;

  /** The user has read up to `seq`, or all that has come. Kept and sent later while there is no connection. */
  markRead(seq?: number): Promise<void>;
  /** Call it with each key press: at most one frame every three seconds leaves. */
  typing(): void;
  mute(options?: { readonly until?: number }): Promise<void>;
  unmute(): Promise<void>;
  /** Pins, archives, hides, names, marks as unread, clears: for this user alone. */
  setPreferences(preferences: Preferences): Promise<void>;

  /** The messages that answer this one, oldest first, page by page. */
  replies(seq: number, page?: { readonly after?: string; readonly limit?: number }): Promise<{ readonly entries: readonly Entry[]; readonly next?: string }>;
  pins(): Promise<readonly Entry[]>;
  versions(seq: number): Promise<readonly MessageVersion[]>;
  reactions(
    seq: number,
    page?: { readonly key?: string; readonly after?: string; readonly limit?: number },
  ): Promise<{ readonly reactions: readonly { readonly user: string; readonly key: string; readonly at: number }[]; readonly next?: string }>;
  /** Who has a message and who has read it, now; `receipts` then follows. What moved before this session is in it, and nowhere else. */
  messageReceipts(seq: number): Promise<MessageReceipts>;
  members(page?: { readonly after?: string; readonly limit?: number }): Promise<{ readonly members: readonly Member[]; readonly next?: string }>;
  addMembers(users: readonly string[], role?: Role): Promise<void>;
  removeMembers(users: readonly string[]): Promise<void>;
  leave(): Promise<void>;
}
