// What a fake server has committed: what a client's view is compared with.
import type { ConversationView, Entry, HistoryPage, Reaction } from "../../src/wire/entries.js";
import type { Json } from "../../src/wire/json.js";

export class Truth {
  /** All conversations' entries, in the order of their commits. */
  readonly log: Entry[] = [];
  readonly #timelines = new Map<string, Entry[]>();
  readonly #byClientMsgId = new Map<string, Entry>();
  readonly #reactions = new Map<string, Map<string, string[]>>();
  readonly #reads = new Map<string, number>();
  readonly #preferences = new Map<string, Partial<ConversationView>>();
  /** Entries that history does not have, although their numbers were given. */
  readonly unavailable = new Set<string>();

  timeline(conversation: string): readonly Entry[] {
    return this.#timelines.get(conversation) ?? [];
  }

  get conversations(): readonly string[] {
    return [...this.#timelines.keys()];
  }

  /** An entry as it stands now. */
  now(entry: Entry): Entry {
    const now = this.#timelines.get(entry.conversation)?.[entry.seq - 1] ?? entry;
    const answered = now.reply_to && this.#timelines.get(entry.conversation)?.[now.reply_to.seq - 1];
    if (!answered) return now;
    const { seq, from, type, body, recalled } = answered;
    return { ...now, reply_to: { seq, type, ...(from !== undefined && { from }), ...(recalled ? { recalled: true } : { body }) } };
  }

  commit(conversation: string, entry: Partial<Entry>): Entry {
    const timeline = this.#timelines.get(conversation) ?? [];
    this.#timelines.set(conversation, timeline);
    const whole: Entry = { kind: "message", at: 0, type: "text", body: null, ...entry, conversation, seq: timeline.length + 1 };
    timeline.push(whole);
    this.log.push(whole);
    return whole;
  }

  send(conversation: string, from: string, message: Partial<Entry>, at: number): { entry: Entry; duplicate: boolean } {
    const id = `${from}/${message.client_msg_id}`;
    const first = this.#byClientMsgId.get(id);
    if (first && message.client_msg_id !== undefined) return { entry: first, duplicate: true };
    const entry = this.commit(conversation, { ...message, from, at });
    this.#byClientMsgId.set(id, entry);
    return { entry, duplicate: false };
  }

  /** Without `by` the app server edits. Of an edit that was made before, the first result. */
  edit(conversation: string, seq: number, by: string | undefined, body: Json, at: number, mentions?: readonly string[], client_msg_id?: string): Entry | undefined {
    const message = this.#timelines.get(conversation)?.[seq - 1];
    const id = `${by}/${client_msg_id}`;
    const first = client_msg_id === undefined ? undefined : this.#byClientMsgId.get(id);
    if (first) return first;
    if (!message || message.recalled) return undefined;
    const version = (message.version ?? 1) + 1;
    const { mentions: _, edited_by: __, ...kept } = message;
    const named = mentions ? { mentions } : {};
    const editor = by === undefined ? {} : { edited_by: by };
    this.#put({ ...kept, ...named, ...editor, body, version, edited_at: at });
    this.#emptyEdits(conversation, seq);
    const from = by === undefined ? {} : { from: by };
    const entry = this.commit(conversation, { kind: "edit", ...from, target: seq, version, body, ...named, type: message.type, silent: true, at });
    this.#byClientMsgId.set(id, entry);
    return entry;
  }

  recall(conversation: string, seq: number, by: string, at: number): Entry | undefined {
    const message = this.#timelines.get(conversation)?.[seq - 1];
    if (!message) return undefined;
    if (message.recalled) return this.timeline(conversation).find(({ kind, target }) => kind === "recall" && target === seq);
    const { mentions: _, reactions: __, pinned: ___, stream: ____, ...kept } = message;
    this.#reactions.delete(`${conversation} ${seq}`);
    this.#put({ ...kept, body: null, recalled: { at, by } });
    this.#emptyEdits(conversation, seq);
    return this.commit(conversation, { kind: "recall", from: by, target: seq, at });
  }

  /** Edits that are superseded, or whose message was recalled, keep neither body nor mentions. */
  #emptyEdits(conversation: string, seq: number): void {
    for (const entry of this.timeline(conversation)) {
      if (entry.kind !== "edit" || entry.target !== seq) continue;
      const { mentions: _, ...kept } = entry;
      this.#put({ ...kept, body: null });
    }
  }

  react(conversation: string, seq: number, user: string, key: string, remove: boolean, at: number): void {
    const name = `${conversation} ${seq}`;
    const keys = this.#reactions.get(name) ?? new Map<string, string[]>();
    this.#reactions.set(name, keys);
    keys.set(key, [...(remove ? [] : [user]), ...(keys.get(key) ?? []).filter((other) => other !== user)]);
    const reactions: Reaction[] = [...keys].filter(([, users]) => users.length > 0).map(([key, users]) => ({ key, count: users.length, users: users.slice(0, 3) }));
    const message = this.#timelines.get(conversation)?.[seq - 1];
    if (!message || message.recalled) return;
    this.#put({ ...message, reactions });
    this.commit(conversation, { kind: "reactions", type: "reactions", body: { changes: [{ seq, reactions: reactions as unknown as Json }] }, at });
  }

  pin(conversation: string, seq: number, user: string, isPinned: boolean, at: number): void {
    const message = this.#timelines.get(conversation)?.[seq - 1];
    if (!message || message.recalled) return;
    const { pinned: _, ...rest } = message;
    this.#put(isPinned ? { ...rest, pinned: { at, by: user } } : rest);
    this.commit(conversation, { kind: "pins", from: user, target: seq, body: { pinned: isPinned }, at });
  }

  /** Changes an entry where it stands. */
  #put(entry: Entry): void {
    const timeline = this.#timelines.get(entry.conversation);
    if (timeline) timeline[entry.seq - 1] = entry;
  }

  grow(conversation: string, seq: number, body: Json): void {
    const message = this.#timelines.get(conversation)?.[seq - 1];
    if (message) this.#put({ ...message, body });
  }

  read(user: string, conversation: string, seq: number): void {
    const name = `${user} ${conversation}`;
    this.#reads.set(name, Math.max(this.#reads.get(name) ?? 0, seq));
  }

  history(query: { readonly [name: string]: unknown }): HistoryPage | undefined {
    const id = String(query["conversation"]);
    const all = this.#timelines.get(id);
    if (!all) return undefined;
    const limit = Number(query["limit"] ?? 50);
    const from = query["from_seq"] as number | undefined;
    const to = (query["to_seq"] as number | undefined) ?? all.length;
    const range = all.filter(({ seq }) => seq >= (from ?? 1) && seq <= to);
    const entries = from === undefined ? range.slice(-limit) : range.slice(0, limit);
    return {
      entries: entries.filter(({ seq }) => !this.unavailable.has(`${id} ${seq}`)).map((entry) => this.now(entry)),
      more: entries.length < range.length,
      first_seq: 1,
      last_seq: all.length,
      conversation_first_seq: 1,
      conversation_last_seq: all.length,
    };
  }

  view(user: string, id: string): ConversationView {
    const all = this.timeline(id);
    const last = all.at(-1);
    const lastMessage = all.filter(({ kind, recalled }) => kind === "message" && !recalled).at(-1);
    const read_seq = this.#reads.get(`${user} ${id}`) ?? 0;
    const unread = all.filter((entry) => entry.seq > read_seq && entry.kind === "message" && entry.from !== user && !entry.silent && !entry.recalled);
    return {
      id,
      kind: id.includes("~") ? "direct" : "group",
      role: "member",
      last_seq: all.length,
      last_at: last?.at ?? 0,
      ...(last && { last_entry: this.now(last) }),
      ...(lastMessage && { last_message: this.now(lastMessage) }),
      read_seq,
      unread: unread.length,
      mentions: unread.filter(({ mentions }) => mentions?.some((name) => name === user || name === "@all")).length,
      muted: false,
      ...this.#preferences.get(id),
    };
  }

  /** What is unread in all conversations of the list; of the first `named` by name. */
  unread(user: string, named = 1_000): { unread: number; mentions: number; conversations: number; lines: readonly { conversation: string; unread: number; mentions: number; muted?: boolean }[] } {
    const all = this.list(user, undefined, 100_000).conversations.filter(({ unread, marked_unread }) => unread > 0 || marked_unread === true);
    const sum = (count: (view: ConversationView) => number): number => all.reduce((whole, view) => whole + count(view), 0);
    const lines = all.slice(0, named).map(({ id, unread, mentions, muted }) => ({ conversation: id, unread, mentions, ...(muted && { muted }) }));
    return { unread: sum(({ unread, muted }) => (muted ? 0 : unread)), mentions: sum(({ mentions }) => mentions), conversations: all.length, lines };
  }

  /** How far everybody has read. */
  marks(conversation: string): readonly { user: string; read_seq: number }[] {
    const of = [...this.#reads].filter(([name]) => name.endsWith(` ${conversation}`));
    return of.map(([name, read_seq]) => ({ user: name.slice(0, name.indexOf(" ")), read_seq }));
  }

  /** What the user has set for a conversation, in place of what was set before. */
  prefer(id: string, preferences: Partial<ConversationView>): void {
    this.#preferences.set(id, preferences);
  }

  list(user: string, after: string | undefined, limit: number, isArchived = false): { conversations: readonly ConversationView[]; next?: string } {
    const all = this.conversations.map((id) => this.view(user, id)).filter(({ archived, hidden }) => !hidden && (archived ?? false) === isArchived).sort((a, b) => b.last_at - a.last_at || (a.id < b.id ? -1 : 1));
    const start = after === undefined ? 0 : Number(after);
    const page = all.slice(start, start + limit);
    return { conversations: page, ...(start + limit < all.length && { next: String(start + limit) }) };
  }
}
