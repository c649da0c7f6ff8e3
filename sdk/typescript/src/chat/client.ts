// The chat side of one user: hands each frame to the part that it concerns.
import type { Conversation } from "../conversation.js";
import { CLIENT_CODES, TidingsError } from "../errors.js";
import type { Observable } from "../observable.js";
import type { Clock } from "../session/clock.js";
import type { LinkEvent, WakeableLink } from "../session/link.js";
import type { Attention } from "../wire/client-frames.js";
import type { Account, AssignmentEvent, ConnectionStatus, MentionsPage, Tidings, TidingsEvents } from "../tidings.js";
import type { Entry } from "../wire/entries.js";
import type { ServerFrame } from "../wire/server-frames.js";
import { AccountDesk } from "./account.js";
import { Asker } from "./asker.js";
import type { Core } from "./core.js";
import { directId } from "./direct.js";
import { Emitter } from "./emitter.js";
import { ConversationHandle, type Parts } from "./handle.js";
import { query, type HttpListener } from "./http.js";
import { actorOf, messageOf } from "./items.js";
import { ListKeeper } from "./list-keeper.js";
import { OfflinePushDesk } from "./offline-push.js";
import { Outbox } from "./outbox.js";
import { PopupDesk } from "./popups.js";
import { PresenceBook } from "./presence.js";
import { listOf, nextOf } from "./questions.js";
import { Pushes } from "./pushes.js";
import { Receipts } from "./receipts.js";
import type { Keeper } from "./stored.js";
import { Timelines } from "./timelines.js";
import { Typing } from "./typing.js";
import { UserBook } from "./users.js";

export interface ClientOptions {
  readonly user: string;
  /** The device that the session binds with. */
  readonly deviceId: string;
  readonly link: WakeableLink;
  readonly http: HttpListener;
  readonly clock: Clock;
  readonly keeper: Keeper;
  /** Called once when the app closes the client. */
  readonly onClose?: readonly (() => void)[];
}

export class Client implements Tidings {
  readonly user: string;
  readonly presence: PresenceBook;
  readonly users: UserBook;
  readonly popups: PopupDesk;
  readonly offlinePush: OfflinePushDesk;
  readonly conversations: ListKeeper;
  readonly #parts: Parts;
  readonly #pushes: Pushes;
  readonly #keeper: Keeper;
  readonly #handles = new Map<string, ConversationHandle>();
  /** Conversations whose last entry came. That this user is no longer a member is said once more, when the server removes the members. */
  readonly #deleted = new Set<string>();
  readonly #attend: (attention: Attention) => void;
  readonly #onClose: readonly (() => void)[];
  /** The cursor that what is held stands for; undefined: nothing is held. */
  #cursor: string | undefined;

  constructor(options: ClientOptions) {
    const { user, deviceId, link, http, clock, keeper } = options;
    this.#attend = (attention) => link.attend(attention);
    const core: Core = { me: user, link, clock, asker: new Asker(link, clock), emitter: new Emitter() };
    const timelines = new Timelines(core, {
      handedOn: (id, entries) => this.#handedOn(id, entries),
      changed: (id) => {
        this.#handles.get(id)?.messages.refresh();
        keeper.timelineChanged(id);
      },
      isWatched: (id) => this.#handles.get(id)?.messages.isWatched ?? false,
    });
    const outbox = new Outbox(core, {
      outboxChanged: (id) => {
        this.#handle(id).messages.refreshNow();
        keeper.outboxChanged();
      },
    });
    const users = new UserBook(core, http);
    const list = new ListKeeper(core, http, {
      read: (view) => timelines.catchUp(view),
      users: (cards) => users.know(cards),
    });
    this.user = user;
    this.presence = new PresenceBook(core);
    this.users = users;
    this.popups = new PopupDesk(core);
    this.offlinePush = new OfflinePushDesk(deviceId, http);
    this.conversations = list;
    this.#parts = { core, http, timelines, outbox, list, typing: new Typing(core), receipts: new Receipts(core), users };
    this.#pushes = new Pushes(core);
    this.#keeper = keeper;
    this.#cursor = keeper.start({ core, timelines, outbox, list });
    for (const timeline of timelines.all) if (timeline.isKept) this.#handle(timeline.id).messages.restored();
    this.#onClose = [link.listen((event) => this.#happen(event)), ...(options.onClose ?? [])];
  }

  get status(): Observable<ConnectionStatus> {
    return this.#parts.core.link.status;
  }

  conversation(id: string): Conversation {
    return this.#handle(id);
  }

  direct(user: string): Conversation {
    return this.#handle(directId(this.user, user));
  }

  async createGroup(group: { readonly id?: string; readonly name?: string; readonly members: readonly string[] }): Promise<Conversation> {
    return this.#joined(await this.#parts.http.call("POST", "/v1/conversations", { kind: "group", ...group }));
  }

  async joinByInvite(token: string): Promise<Conversation> {
    return this.#joined(await this.#parts.http.call("POST", "/v1/invites/join", { token }));
  }

  #joined(answer: unknown): Conversation {
    const id = (answer as { readonly id?: unknown } | undefined)?.id;
    if (typeof id !== "string") throw new TidingsError(CLIENT_CODES.protocol, "the server did not name the group");
    this.conversations.membership(id, true);
    return this.#handle(id);
  }

  account(id: string): Account {
    return new AccountDesk(id, this.#parts.core.asker);
  }

  async mentions(page: { readonly after?: string; readonly limit?: number } = {}): Promise<MentionsPage> {
    const answer = await this.#parts.http.call("GET", "/v1/users/me/mentions" + query({ ...page }));
    return { mentions: listOf<Entry>(answer, "entries"), ...nextOf(answer) };
  }

  on<Name extends keyof TidingsEvents>(event: Name, listener: (value: TidingsEvents[Name]) => void): () => void {
    return this.#parts.core.emitter.on(event, listener);
  }

  /** Tells of what happened before there was a client. */
  report(event: "storage" | "error", error: TidingsError): void {
    this.#parts.core.emitter.emit(event, error);
  }

  reconnect(): void {
    this.#parts.core.link.start();
  }

  attend(attention: Attention): void {
    this.#attend(attention);
  }

  http(method: string, path: string, body?: unknown): Promise<unknown> {
    return this.#parts.http.call(method, path, body);
  }

  async close(): Promise<void> {
    await this.#keeper.close();
    await this.#parts.core.link.close();
    for (const end of this.#onClose) end();
    this.#parts.outbox.close(new TidingsError(CLIENT_CODES.closed, "the app has closed the client"));
    this.#parts.typing.close();
    this.conversations.close();
    this.users.close();
  }

  #handle(id: string): ConversationHandle {
    let handle = this.#handles.get(id);
    if (!handle) this.#handles.set(id, (handle = new ConversationHandle(id, this.#parts)));
    return handle;
  }

  #happen(event: LinkEvent): void {
    switch (event.type) {
      case "up":
        this.#up(event);
        break;
      case "down":
        break; // what is on its way is told by its own promise
      case "forget":
        this.#reset();
        break;
      case "report":
        this.#parts.core.emitter.emit("error", event.error);
        break;
      case "frame":
        this.#take(event.frame);
        break;
    }
  }

  #up({ bound, from }: Extract<LinkEvent, { type: "up" }>): void {
    const { timelines, outbox } = this.#parts;
    const { resume } = bound;
    if (resume.reset) this.#reset();
    // Resumed elsewhere than what this page holds: another tab's session, of which some was missed here.
    else if (this.#cursor !== undefined && from !== this.#cursor) this.#readAnew();
    else if (resume.ranges && !resume.complete) timelines.want(resume.ranges);
    this.#cursor = bound.cursor;
    this.#keeper.cursorMoved(bound.cursor);
    // Read marks, mutes and preferences that changed meanwhile come with no entry.
    this.conversations.refreshAll();
    this.presence.up();
    this.users.up();
    this.#parts.receipts.up();
    timelines.up();
    for (const { messages } of this.#handles.values()) messages.retry();
    outbox.unpause();
  }

  #reset(): void {
    this.#cursor = undefined;
    this.#keeper.forget();
    this.conversations.clear();
    this.#parts.receipts.clear();
    for (const handle of this.#handles.values()) handle.forgetMarks();
    this.#readAnew();
    this.#parts.core.emitter.emit("reset", {});
  }

  #readAnew(): void {
    this.#parts.timelines.reset();
    for (const handle of this.#handles.values()) handle.messages.restart();
  }

  #take(frame: ServerFrame): void {
    const { core, timelines, list, typing, receipts } = this.#parts;
    switch (frame.t) {
      case "messages":
        for (const entry of frame.entries) {
          this.#parts.outbox.see(entry);
          list.take(entry);
          if (entry.kind === "member_change" || entry.kind === "conversation_change") receipts.changed(entry.conversation);
        }
        timelines.take(frame.entries);
        for (const entry of frame.entries) {
          this.#deleted.delete(entry.conversation);
          if (endsConversation(entry)) {
            this.#membership(entry.conversation, false);
            this.#deleted.add(entry.conversation);
          }
        }
        this.#cursor = frame.cursor;
        this.#keeper.cursorMoved(frame.cursor);
        break;
      case "read":
        if (frame.user === this.user) list.read(frame.conversation, frame.seq);
        core.emitter.emit("read", { conversation: frame.conversation, user: frame.user, seq: frame.seq });
        break;
      case "signal": {
        const { conversation, user, type, body } = frame;
        core.emitter.emit("signal", { conversation, ...(user != null && { user }), type, body });
        break;
      }
      case "typing":
        typing.take(frame.conversation, frame.user);
        core.emitter.emit("typing", { conversation: frame.conversation, user: frame.user });
        break;
      case "membership":
        this.#membership(frame.conversation, frame.member);
        break;
      case "conversation":
        list.put(frame.conversation);
        this.#keeper.listChanged();
        break;
      case "receipts":
        receipts.take(frame.conversation, frame.marks ?? [], frame.moved ?? []);
        break;
      case "user":
        this.users.know([frame.user]);
        break;
      case "stream":
        timelines.grow(frame);
        break;
      case "presence":
        this.presence.take(frame.changes);
        break;
      case "push":
        this.#pushes.take(frame);
        break;
      case "popup":
        if (frame.show) core.emitter.emit("popup", frame.show);
        break;
      case "error":
        core.emitter.emit("error", new TidingsError(frame.code, frame.message, { retry: frame.retry }));
        break;
      default:
        break; // answers that nobody waits for any more
    }
  }

  #membership(conversation: string, member: boolean): void {
    const { core, list, timelines } = this.#parts;
    if (this.#deleted.delete(conversation) && !member) return;
    list.membership(conversation, member);
    timelines.forget(conversation);
    const handle = this.#handles.get(conversation);
    handle?.forgetMarks();
    handle?.messages.restart();
    core.emitter.emit("membership", { conversation, member });
  }

  #handedOn(id: string, entries: readonly Entry[]): void {
    const { core, outbox, typing } = this.#parts;
    for (const entry of entries) {
      outbox.see(entry); // also of those that were read from history
      const assignment = assignmentOf(entry);
      if (assignment) core.emitter.emit("assignment", assignment);
      if (entry.kind !== "message") continue;
      if (entry.from != null) typing.end(id, entry.from);
      core.emitter.emit("message", messageOf(entry));
    }
  }
}

/** What an entry says of who has its conversation; undefined also where its reader may not know. */
function assignmentOf(entry: Entry): AssignmentEvent | undefined {
  if (entry.kind !== "assignment" || entry.body === null || typeof entry.body !== "object") return undefined;
  const { assigned_to: assignedTo } = entry.body as { readonly assigned_to?: unknown };
  if (assignedTo !== null && typeof assignedTo !== "string") return undefined;
  const by = actorOf(entry);
  return { conversation: entry.conversation, assignedTo, at: entry.at, ...(by !== undefined && { by }) };
}

/** Whether it is the last entry of a conversation that was deleted. */
function endsConversation({ kind, body }: Entry): boolean {
  return kind === "conversation_change" && body !== null && typeof body === "object" && "deleted" in body && body["deleted"] === true;
}
