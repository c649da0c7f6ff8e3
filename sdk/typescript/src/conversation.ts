// One conversation, as an app uses it.
import type { TimelineItem } from "./message.js";
import type { Observable } from "./observable.js";
import type { ConversationView, Entry, Role, SendReceipt } from "./wire/entries.js";
import type { Expires, Preferences } from "./wire/client-frames.js";
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

/** The timeline of a conversation, as far as it is loaded. */
export interface Messages extends Observable<MessagesSnapshot> {
  /** Loads the newest page, if it is not loaded. Subscribing does this, too. */
  load(): Promise<void>;
  /** Loads the page before the first item, of `limit` entries (50 when absent, 500 at most); does nothing without one. */
  loadOlder(limit?: number): Promise<void>;
}

/** What a message has besides its body. */
export interface SendOptions {
  /** The app's own kind of content; `text` when absent. */
  readonly type?: string;
  /** The users whom it mentions; `@all` for everybody. */
  readonly mentions?: readonly string[];
  /** Neither counted as unread nor pushed to offline devices. */
  readonly silent?: boolean;
  /** Counted as unread, but not pushed to offline devices. */
  readonly skipPush?: boolean;
  /** The `seq` of the message that this one answers. */
  readonly replyTo?: number;
  /** When it disappears: so many seconds after it is stored, or after every other member has read it, whichever is first. */
  readonly expires?: Expires;
  /**
   * Made up when absent. A send with an id that was used before answers with the first result, or with `client_msg_id_reused` if it was
   * that of another message of the conversation.
   */
  readonly clientMsgId?: string;
}

/** What an edit changes besides the body. */
export interface EditOptions {
  /** The app's kind of the new content; the message's own when absent. */
  readonly type?: string;
  /** The users whom the message mentions from now on. */
  readonly mentions?: readonly string[];
  /** Refused with `version_conflict` when the message has another version by now. */
  readonly ifVersion?: number;
}

/** What must hold for an assignment. */
export interface AssignOptions {
  /** Refused with `assignment_conflict` unless this agent has the conversation now; null: unless nobody has it. */
  readonly ifAssignedTo?: string | null;
}

/** How far members have come, in conversations that show it. */
export interface ReceiptsSnapshot {
  /** By user: the newest entry that reached a device, and the newest that was read. */
  readonly marks: ReadonlyMap<string, MemberMark>;
  /**
   * In conversations that only count: of the newest 500 entries, by `seq`, how many members but this user have come to it. A member who
   * moves while it is read may be counted twice until it is read again, at the next connect.
   */
  readonly counts: ReadonlyMap<number, ReceiptCounts>;
}

/** How far one member has come. */
export interface MemberMark {
  /** Everything up to this `seq` has reached a device. */
  readonly delivered: number;
  /** Everything up to this `seq` is read. */
  readonly read: number;
}

/** How many members have come to a message. */
export interface ReceiptCounts {
  /** On whose devices it is. */
  readonly delivered: number;
  /** Who have read it. */
  readonly read: number;
}

/** Who has a message, and who has read it. */
export interface MessageReceipts {
  /** On how many members' devices it is. */
  readonly delivered: number;
  /** How many members have read it. */
  readonly read: number;
  /** How many members could. */
  readonly members: number;
  /** Each member, where the conversation shows members. */
  readonly receipts?: readonly MemberReceipt[];
}

/** Whether one member has a message. */
export interface MemberReceipt {
  /** The member. */
  readonly user: string;
  /** It is on a device of the member. */
  readonly delivered: boolean;
  /** The member has read it. */
  readonly read: boolean;
}

/** A member of a conversation. */
export interface Member {
  /** The member. */
  readonly user: string;
  /** The member's name for display. */
  readonly name?: string;
  /** The address or the app's name of the member's picture. */
  readonly avatar?: string;
  /** What the member may do. */
  readonly role: Role;
  /** The member is muted by the conversation's owner, an admin or the app server: reads, and writes nothing. */
  readonly muted?: boolean;
}

/** A mute: the member reads, and writes nothing. A ban: the user is removed, and does not become a member again. */
export type RestrictionKind = "mute" | "ban";

/** A mute or a ban of a user in a conversation. */
export interface Restriction {
  /** Who is muted or banned. */
  readonly user: string;
  /** Which of the two it is. */
  readonly kind: RestrictionKind;
  /** Since when, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** When it ends by itself, in milliseconds since 1970 UTC; absent: when it is lifted. */
  readonly until?: number;
  /** Who decided it; absent: the app server. */
  readonly by?: string;
  /** Why, in words for members. */
  readonly reason?: string;
}

/** An invite of a conversation, without its token. */
export interface Invite {
  /** The invite's id in the conversation. */
  readonly id: string;
  /** When it was made, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** Who made it; absent: the app server. */
  readonly by?: string;
  /** When it ends, in milliseconds since 1970 UTC; absent: when it is revoked. */
  readonly expires_at?: number;
  /** How many users may join by it; absent: any number. */
  readonly uses_max?: number;
  /** How many have joined by it. */
  readonly uses: number;
}

/** An invite that was made just now. */
export interface MadeInvite extends Invite {
  /** What the link has in it by which users join. The server keeps a digest alone. */
  readonly token: string;
}

/** A user's request to become a member. */
export interface JoinRequest {
  /** Who asks. */
  readonly user: string;
  /** When, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** What the user says. */
  readonly text?: string;
  /** Whether it waits or was refused. */
  readonly state: "waiting" | "refused";
  /** Why it was refused. */
  readonly reason?: string;
}

/** A page of requests. */
export interface JoinRequestsPage {
  /** In the order in which their users were created. */
  readonly requests: readonly JoinRequest[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** A page of mutes and bans. */
export interface RestrictionsPage {
  /** Those that hold, in the order in which their users were created. */
  readonly restrictions: readonly Restriction[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** What a message was at some time. */
export interface MessageVersion {
  /** 1 as it was sent, and one more with each edit. */
  readonly version: number;
  /** When it became so, in milliseconds since 1970 UTC. */
  readonly at: number;
  /** Who made it so. */
  readonly by?: string;
  /** The app's kind of content. */
  readonly type: string;
  /** The content. */
  readonly body: Json;
}

/** A page of entries. */
export interface EntriesPage {
  /** In the order that the call states. */
  readonly entries: readonly Entry[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** A page of members. */
export interface MembersPage {
  /** In the order of their ids. */
  readonly members: readonly Member[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** What one user reacted with. */
export interface UserReaction {
  /** The user. */
  readonly user: string;
  /** An emoji, or the app's own word. */
  readonly key: string;
  /** When, in milliseconds since 1970 UTC. */
  readonly at: number;
}

/** A page of reactions. */
export interface ReactionsPage {
  /** Who reacted, and with what. */
  readonly reactions: readonly UserReaction[];
  /** Hand it back as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

/** A message that grows while it is read, as the answers of assistants do. */
export interface GrowingMessage {
  /** The conversation that it grows in. */
  readonly conversation: string;
  /** Its number there. */
  readonly seq: number;
  /** Adds text at the end. */
  append(text: string): void;
  /** Ends it; `body` replaces what has grown. */
  end(body?: Json): Promise<SendReceipt>;
}

/** A conversation: what is shown of it, and what its user does there. */
export interface Conversation {
  /** The conversation's id. */
  readonly id: string;
  /** The loaded part of its timeline. */
  readonly messages: Messages;
  /** The conversation's line in the user's list, also one that is not loaded with it; undefined while the user has none. */
  readonly view: Observable<ConversationView | undefined>;
  /** Who types now, without this user. */
  readonly typingUsers: Observable<readonly string[]>;
  /** How far members have come, where the conversation shows it: read when the first listener comes, and kept right. */
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

  /** Gives a message of this user another body. */
  edit(seq: number, body: Json, options?: EditOptions): Promise<SendReceipt>;
  /** Takes a message back: its body is removed for everybody. */
  recall(seq: number): Promise<SendReceipt>;
  /** Adds this user's reaction to a message. */
  react(seq: number, key: string): Promise<void>;
  /** Takes it back. */
  unreact(seq: number, key: string): Promise<void>;
  /** Pins a message for all members. */
  pin(seq: number): Promise<void>;
  /** Takes the pin away. */
  unpin(seq: number): Promise<void>;

  /** The user has read up to `seq`, or all that has come. Kept and sent later while there is no connection. */
  markRead(seq?: number): Promise<void>;
  /** Call it with each key press: at most one frame every three seconds leaves. */
  typing(): void;
  /**
   * Signals something to the members who are there now, such as "stop" to who writes a growing message: nothing is kept, and it is lost without
   * a connection. `body` has at most 1 KiB as JSON; at most 20 a second.
   */
  signal(type: string, body?: Json): void;
  /** No notices of its messages, for this user alone: until `until` (milliseconds since 1970 UTC), or until `unmute`. */
  mute(options?: { readonly until?: number }): Promise<void>;
  /** Ends the mute. */
  unmute(): Promise<void>;
  /** Pins, archives, hides, names, marks as unread, clears: for this user alone. */
  setPreferences(preferences: Preferences): Promise<void>;

  /** The messages that answer this one, oldest first, page by page. */
  replies(seq: number, page?: { readonly after?: string; readonly limit?: number }): Promise<EntriesPage>;
  /** The pinned messages. */
  pins(): Promise<readonly Entry[]>;
  /** What a message was before its edits, where the server keeps that (`messages.edit_history`). */
  versions(seq: number): Promise<readonly MessageVersion[]>;
  /** Who reacted to a message; with `key`, so. */
  reactions(
    seq: number,
    page?: { readonly key?: string; readonly after?: string; readonly limit?: number },
  ): Promise<ReactionsPage>;
  /** Who has a message and who has read it, now; `receipts` then follows. */
  messageReceipts(seq: number): Promise<MessageReceipts>;
  /** The members, page by page. */
  members(page?: { readonly after?: string; readonly limit?: number }): Promise<MembersPage>;
  /** Adds members. */
  addMembers(users: readonly string[], role?: Role): Promise<void>;
  /** Removes members. */
  removeMembers(users: readonly string[]): Promise<void>;
  /** Removes this user. */
  leave(): Promise<void>;
  /** Mutes a member or bans a user, for the owner and admins: in place of a former mute or ban. */
  restrict(user: string, kind: RestrictionKind, options?: { readonly until?: number; readonly reason?: string }): Promise<void>;
  /** Lifts a mute or a ban. If there is none, nothing happens. */
  liftRestriction(user: string, kind: RestrictionKind): Promise<void>;
  /** The mutes and bans that hold, for the owner and admins, page by page. */
  restrictions(page?: { readonly kind?: RestrictionKind; readonly after?: string; readonly limit?: number }): Promise<RestrictionsPage>;
  /** Makes a member the owner, and this user, who is the owner, an admin. */
  handOver(to: string): Promise<void>;
  /** Makes an invite, for the owner and admins: its token is in this answer alone. */
  createInvite(options?: { readonly expiresAt?: number; readonly usesMax?: number }): Promise<MadeInvite>;
  /** The invites that hold, for the owner and admins. */
  invites(): Promise<readonly Invite[]>;
  /** Revokes an invite. Who has joined by it stays. */
  revokeInvite(id: string): Promise<void>;
  /** Asks to become a member of a group that takes requests. */
  askToJoin(text?: string): Promise<void>;
  /** What has become of this user's request. */
  joinRequest(): Promise<JoinRequest>;
  /** Takes this user's request back. */
  withdrawJoinRequest(): Promise<void>;
  /** The requests that wait, for the owner and admins, page by page. */
  joinRequests(page?: { readonly after?: string; readonly limit?: number }): Promise<JoinRequestsPage>;
  /** Grants a request. */
  approveJoinRequest(user: string): Promise<void>;
  /** Refuses a request, with a reason for the user. */
  refuseJoinRequest(user: string, reason?: string): Promise<void>;

  /**
   * Of a conversation with an account that this user answers for: gives it to an agent of the account, such as this user, or with
   * null to nobody. All its agents are told by the event `assignment`.
   */
  assign(agent: string | null, options?: AssignOptions): Promise<void>;
}
