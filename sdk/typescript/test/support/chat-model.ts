// What a client must show of a conversation, as docs/chat.md and docs/websocket.md say it. It knows neither the client's code nor the
// server's: it is told what was done and what that was answered with, in any order, and says what everybody must see in the end.
import type { Json } from "../../src/wire/json.js";

/** Who did something, and when; without `by` the app server did. */
interface By {
  readonly at: number;
  readonly by?: string;
}

interface Sent {
  readonly seq: number;
  readonly at: number;
  readonly from?: string;
  readonly body: Json;
  readonly mentions: readonly string[];
  readonly silent: boolean;
  readonly replyTo?: number;
}

interface Edit extends By {
  readonly version: number;
  readonly body: Json;
  readonly mentions: readonly string[];
}

/** A message as it stands in the end. */
export interface Shown {
  readonly seq: number;
  readonly at: number;
  readonly from: string | undefined;
  readonly body: Json;
  readonly mentions: readonly string[];
  readonly silent: boolean;
  readonly version: number;
  readonly edited: By | undefined;
  readonly recalled: By | undefined;
  /** `key user user`, in the order of the alphabet. */
  readonly reactions: readonly string[];
  /** By whom; undefined: it is not pinned. */
  readonly pinned: string | undefined;
  readonly replyTo: { readonly seq: number; readonly from: string | undefined; readonly body: Json | undefined; readonly recalled: boolean } | undefined;
}

/** A line of the list, without what depends on the server's clock. */
export interface Line {
  readonly unread: number;
  readonly mentions: number;
  readonly isPinned: boolean;
  readonly isMarked: boolean;
  readonly isMuted: boolean;
  readonly title: string | undefined;
  readonly last: Shown | undefined;
}

export class ConversationModel {
  readonly #me: string;
  readonly #sent = new Map<number, Sent>();
  readonly #edits = new Map<number, Edit[]>();
  readonly #recalls = new Map<number, By>();
  readonly #reactions = new Map<number, Set<string>>();
  readonly #pins = new Map<number, string>();
  isMember = true;
  /** The notices that everybody must see, of those who came before the end. */
  notices = 0;
  read = 0;
  /** How far the other members have read, as far as the conversation shows it. */
  readonly marks = new Map<string, number>();
  cleared = 0;
  title: string | undefined;
  isPinned = false;
  isArchived = false;
  isMarked = false;
  isMuted = false;
  #hiddenAt: number | undefined;

  constructor(me: string) {
    this.#me = me;
  }

  /** The numbers of the messages, oldest first. */
  get seqs(): readonly number[] {
    return [...this.#sent.keys()].sort((a, b) => a - b);
  }

  sender(seq: number): string | undefined {
    return this.#sent.get(seq)?.from;
  }

  sent(message: Sent): void {
    this.#sent.set(message.seq, message);
  }

  edited(seq: number, edit: Edit): void {
    this.#edits.set(seq, [...(this.#edits.get(seq) ?? []).filter(({ version }) => version !== edit.version), edit]);
  }

  /** Of several recalls the first one counts. One whose answer was lost is answered as a repeated one, and is the first if no other is. */
  recalled(seq: number, by: By, isRepeated: boolean): void {
    if (!isRepeated || !this.#recalls.has(seq)) this.#recalls.set(seq, by);
  }

  reacted(seq: number, user: string, key: string, isGiven: boolean): void {
    const given = this.#reactions.get(seq) ?? new Set<string>();
    this.#reactions.set(seq, given);
    if (isGiven) given.add(`${key} ${user}`);
    else given.delete(`${key} ${user}`);
  }

  pinned(seq: number, by: string | undefined): void {
    if (by === undefined) this.#pins.delete(seq);
    else if (!this.#pins.has(seq)) this.#pins.set(seq, by);
  }

  hasRead(seq: number): void {
    this.read = Math.max(this.read, seq);
    this.isMarked = false;
  }

  /** Another member has read. */
  otherHasRead(user: string, seq: number): void {
    this.marks.set(user, Math.max(this.marks.get(user) ?? 0, seq));
  }

  hidden(isHidden: boolean): void {
    this.#hiddenAt = isHidden ? Math.max(0, ...this.#sent.keys()) : undefined;
  }

  get isListed(): boolean {
    const isHidden = this.#hiddenAt !== undefined && Math.max(0, ...this.#sent.keys()) <= this.#hiddenAt;
    return this.isMember && !this.isArchived && !isHidden && this.#sent.size > 0;
  }

  shown(seq: number): Shown | undefined {
    const sent = this.#sent.get(seq);
    if (!sent) return undefined;
    const edits = (this.#edits.get(seq) ?? []).sort((a, b) => a.version - b.version);
    const newest = edits.at(-1);
    const recalled = this.#recalls.get(seq);
    const byKey = new Map<string, string[]>();
    for (const given of [...(this.#reactions.get(seq) ?? [])].sort()) {
      const [key, user] = given.split(" ") as [string, string];
      byKey.set(key, [...(byKey.get(key) ?? []), user]);
    }
    const answered = sent.replyTo === undefined ? undefined : this.shown(sent.replyTo);
    const isShort = answered !== undefined && JSON.stringify(answered.body).length <= 1_024;
    return {
      seq,
      at: sent.at,
      from: sent.from,
      body: recalled ? null : (newest ?? sent).body,
      mentions: recalled ? [] : (newest ?? sent).mentions,
      silent: sent.silent,
      version: newest?.version ?? 1,
      edited: newest && { at: newest.at, ...(newest.by !== undefined && { by: newest.by }) },
      recalled,
      reactions: recalled ? [] : [...byKey].map(([key, users]) => [key, ...users].join(" ")).sort(),
      pinned: recalled ? undefined : this.#pins.get(seq),
      // A message that the user has cleared does not exist for that user.
      replyTo: answered && answered.seq <= this.cleared ? { seq: answered.seq, from: undefined, body: undefined, recalled: false } : answered && { seq: answered.seq, from: answered.from, body: isShort && !answered.recalled ? answered.body : undefined, recalled: answered.recalled !== undefined },
    };
  }

  /** All that this user may read, oldest first. */
  get timeline(): readonly Shown[] {
    return this.seqs.filter((seq) => seq > this.cleared).map((seq) => this.shown(seq) as Shown);
  }

  get line(): Line {
    const unread = this.timeline.filter(({ seq, from, silent, recalled }) => seq > this.read && from !== this.#me && !silent && !recalled);
    return {
      unread: unread.length,
      mentions: unread.filter(({ mentions }) => mentions.some((name) => name === this.#me || name === "@all")).length,
      isPinned: this.isPinned,
      isMarked: this.isMarked,
      isMuted: this.isMuted,
      title: this.title,
      last: this.timeline.filter(({ recalled }) => !recalled).at(-1),
    };
  }
}
