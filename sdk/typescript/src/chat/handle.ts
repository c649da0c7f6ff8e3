// One conversation as an app holds it: no state of its own, but for what waits to be told.
import type {
  AssignOptions, Conversation, EditOptions, EntriesPage, GrowingMessage, Invite, JoinRequest, JoinRequestsPage, MadeInvite, MembersPage, MessageReceipts, MessageVersion, ReactionsPage, ReceiptsSnapshot,
  RestrictionKind, RestrictionsPage, SendOptions,
} from "../conversation.js";
import type { Observable } from "../observable.js";
import type { NewMessage, Preferences } from "../wire/client-frames.js";
import type { ConversationView, Entry, Role, SendReceipt } from "../wire/entries.js";
import type { Json } from "../wire/json.js";
import type { Core } from "./core.js";
import { directPeer } from "./direct.js";
import { GrowingSend } from "./growing-message.js";
import type { HttpListener } from "./http.js";
import { randomId } from "./ids.js";
import type { ListKeeper } from "./list-keeper.js";
import type { Outbox } from "./outbox.js";
import { Questions } from "./questions.js";
import type { Receipts } from "./receipts.js";
import type { Timelines } from "./timelines.js";
import type { Typing } from "./typing.js";
import type { UserBook } from "./users.js";
import { Window } from "./window.js";

/** The parts that all conversations share. */
export interface Parts {
  readonly core: Core;
  readonly http: HttpListener;
  readonly timelines: Timelines;
  readonly outbox: Outbox;
  readonly list: ListKeeper;
  readonly typing: Typing;
  readonly receipts: Receipts;
  readonly users: UserBook;
}

export class ConversationHandle implements Conversation {
  readonly id: string;
  readonly messages: Window;
  readonly #parts: Parts;
  readonly #questions: Questions;
  #readTo = 0;
  /** There is a mark to be told. */
  #hasRead = false;
  #reading: Promise<void> | undefined;

  constructor(id: string, parts: Parts) {
    this.id = id;
    this.#parts = parts;
    this.messages = new Window(id, parts.core, parts.timelines, parts.outbox);
    this.#questions = new Questions(parts.http, id);
  }

  get view(): Observable<ConversationView | undefined> {
    return this.#parts.list.viewOf(this.id);
  }

  get typingUsers(): Observable<readonly string[]> {
    return this.#parts.typing.in(this.id);
  }

  get receipts(): Observable<ReceiptsSnapshot> {
    return this.#parts.receipts.of(this.id);
  }

  send(body: Json, options: SendOptions = {}): Promise<SendReceipt> {
    this.#parts.typing.sent(this.id);
    return this.#parts.outbox.send(this.id, newMessage(body, options));
  }

  retry(clientMsgId: string): void {
    this.#parts.outbox.retry(this.id, clientMsgId);
  }

  discard(clientMsgId: string): boolean {
    return this.#parts.outbox.discard(this.id, clientMsgId);
  }

  async stream(body: Json, options: SendOptions = {}): Promise<GrowingMessage> {
    const { core } = this.#parts;
    const peer = directPeer(this.id, core.me);
    const destination = peer === undefined ? { conversation: this.id } : { to: peer };
    const receipt = await core.asker.ask({ t: "stream_begin", ...destination, ...newMessage(body, options) });
    return new GrowingSend(core, receipt, body);
  }

  async edit(seq: number, body: Json, options: EditOptions = {}): Promise<SendReceipt> {
    const { type, mentions, ifVersion } = options;
    const receipt = await this.#parts.core.asker.ask({
      t: "edit",
      conversation: this.id,
      seq,
      body,
      ...(type !== undefined && { type }),
      ...(mentions && { mentions }),
      ...(ifVersion !== undefined && { if_version: ifVersion }),
      client_msg_id: randomId(), // the same in every attempt of this edit
    });
    const { at, version } = receipt;
    // A server that does not tell the version: the entry brings it.
    if (version === undefined) return receipt;
    const held = this.#parts.timelines.of(this.id).message(seq);
    this.#show({
      conversation: this.id, seq: receipt.seq, kind: "edit", at, from: this.#parts.core.me, target: seq, body,
      type: type ?? held?.entry.type ?? "text",
      ...(mentions && { mentions }),
      version,
    });
    return receipt;
  }

  async recall(seq: number): Promise<SendReceipt> {
    const { core } = this.#parts;
    const receipt = await core.asker.ask({ t: "recall", conversation: this.id, seq });
    this.#show({ conversation: this.id, seq: receipt.seq, kind: "recall", at: receipt.at, from: core.me, target: seq, type: "", body: null });
    return receipt;
  }

  async react(seq: number, key: string): Promise<void> {
    await this.#parts.core.asker.ask({ t: "react", conversation: this.id, seq, key });
  }

  async unreact(seq: number, key: string): Promise<void> {
    await this.#parts.core.asker.ask({ t: "react", conversation: this.id, seq, key, remove: true });
  }

  async pin(seq: number): Promise<void> {
    await this.#parts.core.asker.ask({ t: "pin", conversation: this.id, seq });
  }

  async unpin(seq: number): Promise<void> {
    await this.#parts.core.asker.ask({ t: "pin", conversation: this.id, seq, remove: true });
  }

  async markRead(seq?: number): Promise<void> {
    const { list, timelines } = this.#parts;
    const newest = seq ?? Math.max(list.viewOf(this.id).get()?.last_seq ?? 0, timelines.of(this.id).high ?? 0);
    // A line that the user has marked as unread is read by reading up to anywhere.
    if (newest <= this.#readTo && list.viewOf(this.id).get()?.marked_unread !== true) return this.#reading;
    this.#readTo = Math.max(this.#readTo, newest);
    this.#hasRead = true;
    list.read(this.id, newest);
    // Marks that are set while one is on its way, or while there is no connection, are told as one.
    if (!this.#reading) {
      this.#reading = this.#tellRead().finally(() => (this.#reading = undefined));
      // An app that marks as it scrolls does not wait for each mark. One that was refused may be set again.
      this.#reading.catch(() => (this.#readTo = 0));
    }
    return this.#reading;
  }

  async #tellRead(): Promise<void> {
    while (this.#hasRead) {
      await this.#parts.core.asker.untilUp();
      this.#hasRead = false;
      await this.#parts.core.asker.ask({ t: "read", conversation: this.id, seq: this.#readTo });
    }
  }

  typing(): void {
    this.#parts.typing.tell(this.id);
  }

  signal(type: string, body?: Json): void {
    this.#parts.core.link.tell({ t: "signal", conversation: this.id, type, ...(body !== undefined && { body }) });
  }

  async mute(options: { readonly until?: number } = {}): Promise<void> {
    await this.#questions.mute(true, options.until); // the line that the server then tells shows it
  }

  async unmute(): Promise<void> {
    await this.#questions.mute(false, undefined);
  }

  async setPreferences(preferences: Preferences): Promise<void> {
    if (preferences.marked_unread === true) this.#readTo = 0; // the next mark takes it back, wherever it stands
    await this.#parts.core.asker.ask({ t: "preferences", conversation: this.id, ...preferences });
  }

  replies(seq: number, page: { readonly after?: string; readonly limit?: number } = {}): Promise<EntriesPage> {
    return this.#questions.replies(seq, page);
  }

  pins(): Promise<readonly Entry[]> {
    return this.#questions.pins();
  }

  versions(seq: number): Promise<readonly MessageVersion[]> {
    return this.#questions.versions(seq);
  }

  reactions(seq: number, page: { readonly key?: string; readonly after?: string; readonly limit?: number } = {}): Promise<ReactionsPage> {
    return this.#questions.reactions(seq, page);
  }

  async messageReceipts(seq: number): Promise<MessageReceipts> {
    const answer = await this.#questions.receipts(seq);
    const marks = (answer.receipts ?? []).map(({ user, delivered, read }) => ({
      user,
      ...(delivered && { delivered_seq: seq }),
      ...(read && { read_seq: seq }),
    }));
    if (marks.length > 0) this.#parts.receipts.take(this.id, marks, []);
    return answer;
  }

  async members(page: { readonly after?: string; readonly limit?: number } = {}): Promise<MembersPage> {
    const answer = await this.#questions.members(page);
    this.#parts.users.know(answer.members.map(({ user: id, name, avatar }) => ({ id, ...(name != null && { name }), ...(avatar != null && { avatar }) })));
    return answer;
  }

  addMembers(users: readonly string[], role?: Role): Promise<void> {
    return this.#questions.changeMembers({ add: users, ...(role && { role }) });
  }

  removeMembers(users: readonly string[]): Promise<void> {
    return this.#questions.changeMembers({ remove: users });
  }

  leave(): Promise<void> {
    return this.removeMembers([this.#parts.core.me]);
  }

  restrict(user: string, kind: RestrictionKind, options: { readonly until?: number; readonly reason?: string } = {}): Promise<void> {
    return this.#questions.restrict(user, { kind, ...options });
  }

  liftRestriction(user: string, kind: RestrictionKind): Promise<void> {
    return this.#questions.liftRestriction(user, kind);
  }

  restrictions(
    page: { readonly kind?: RestrictionKind; readonly after?: string; readonly limit?: number } = {},
  ): Promise<RestrictionsPage> {
    return this.#questions.restrictions(page);
  }

  handOver(to: string): Promise<void> {
    return this.#questions.handOver(to);
  }

  createInvite({ expiresAt, usesMax }: { readonly expiresAt?: number; readonly usesMax?: number } = {}): Promise<MadeInvite> {
    return this.#questions.createInvite({
      ...(expiresAt !== undefined && { expires_at: expiresAt }),
      ...(usesMax !== undefined && { uses_max: usesMax }),
    });
  }

  invites(): Promise<readonly Invite[]> {
    return this.#questions.invites();
  }

  revokeInvite(id: string): Promise<void> {
    return this.#questions.revokeInvite(id);
  }

  askToJoin(text?: string): Promise<void> {
    return this.#questions.askToJoin(text);
  }

  joinRequest(): Promise<JoinRequest> {
    return this.#questions.joinRequest(this.#parts.core.me);
  }

  withdrawJoinRequest(): Promise<void> {
    return this.#questions.refuseJoinRequest(this.#parts.core.me, undefined);
  }

  joinRequests(page: { readonly after?: string; readonly limit?: number } = {}): Promise<JoinRequestsPage> {
    return this.#questions.joinRequests(page);
  }

  approveJoinRequest(user: string): Promise<void> {
    return this.#questions.approveJoinRequest(user);
  }

  refuseJoinRequest(user: string, reason?: string): Promise<void> {
    return this.#questions.refuseJoinRequest(user, reason);
  }

  async assign(agent: string | null, { ifAssignedTo }: AssignOptions = {}): Promise<void> {
    const condition = ifAssignedTo === undefined ? {} : { if_assigned_to: ifAssignedTo };
    await this.#parts.core.asker.ask({ t: "assign", conversation: this.id, assigned_to: agent, ...condition });
  }

  /** Marks are to be told anew: of another store, or after a return. */
  forgetMarks(): void {
    this.#readTo = 0;
    this.#hasRead = false;
  }

  /** What the server has answered is shown at once, until the entry that tells of it comes. */
  #show(entry: Entry): void {
    if (this.#parts.timelines.of(this.id).answer(entry)) this.messages.refresh();
  }
}

function newMessage(body: Json, options: SendOptions): NewMessage & { readonly client_msg_id: string } {
  const { type, mentions, silent, skipPush, replyTo, expires, clientMsgId } = options;
  return {
    body,
    client_msg_id: clientMsgId ?? randomId(),
    ...(type !== undefined && { type }),
    ...(mentions && { mentions }),
    ...(silent && { silent }),
    ...(skipPush && { skip_push: skipPush }),
    ...(replyTo !== undefined && { reply_to: replyTo }),
    ...(expires && { expires }),
  };
}
