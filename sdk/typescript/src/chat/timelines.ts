// Keeps each conversation's timeline whole: reads from history what is missing, a few conversations at a time.
import { TidingsError } from "../errors.js";
import type { ConversationView, Entry, HistoryPage, MissedRange } from "../wire/entries.js";
import type { HistoryQuery } from "../wire/client-frames.js";
import type { StreamFrame } from "../wire/server-frames.js";
import type { Core } from "./core.js";
import { directPeer } from "./direct.js";
import { grow } from "./growing.js";
import { Timeline, type Gap } from "./timeline.js";

// Above, a window begins anew at the newest page, and the app is told what was left out.
const GAP_KEPT_MAX = 1_000;
// Nobody looks at these: so much is read for the event `message`.
const GAP_UNSEEN_MAX = 200;
const FILL_LIMIT = 200;
const PAGE_LIMIT = 50;
// The server's own limit.
const PAGE_LIMIT_MAX = 500;
const FILLS_AT_ONCE_MAX = 3;
// History that answers without what was asked for, so often in a row, does not have it.
const FRUITLESS_MAX = 3;
const SLOTS_UNWATCHED_MAX = 500;
// A reader may go back so far before the oldest are let go; about a hundred megabytes.
const SLOTS_MAX = 120_000;

export interface TimelinesOwner {
  /** Entries of a conversation that were handed on, in order. */
  handedOn(conversation: string, entries: readonly Entry[]): void;
  /** What is held of a conversation has changed. */
  changed(conversation: string): void;
  isWatched(conversation: string): boolean;
}

export class Timelines {
  readonly #core: Core;
  readonly #owner: TimelinesOwner;
  readonly #timelines = new Map<string, Timeline>();
  readonly #filling = new Set<string>();
  readonly #waitingToFill = new Set<string>();
  readonly #renewing = new Set<string>();

  constructor(core: Core, owner: TimelinesOwner) {
    this.#core = core;
    this.#owner = owner;
  }

  of(id: string): Timeline {
    let timeline = this.#timelines.get(id);
    if (!timeline) this.#timelines.set(id, (timeline = new Timeline(id)));
    return timeline;
  }

  get all(): Iterable<Timeline> {
    return this.#timelines.values();
  }

  take(entries: readonly Entry[]): void {
    const byConversation = new Map<string, Entry[]>();
    for (const entry of entries) {
      const list = byConversation.get(entry.conversation);
      if (list) list.push(entry);
      else byConversation.set(entry.conversation, [entry]);
    }
    for (const [id, some] of byConversation) {
      const timeline = this.of(id);
      this.#tell(timeline, timeline.offer(some));
      this.#fill(timeline);
    }
  }

  want(ranges: readonly MissedRange[]): void {
    for (const { conversation, from_seq, to_seq } of ranges) {
      const timeline = this.of(conversation);
      timeline.want(from_seq, to_seq);
      this.#fill(timeline);
    }
  }

  /** The list says how far a conversation has come: a window that stands further back has missed something. */
  catchUp({ id, last_seq, cleared_seq }: ConversationView): void {
    const timeline = this.#timelines.get(id);
    if (!timeline?.isKept || timeline.high === undefined) return;
    if (cleared_seq != null && timeline.clearTo(cleared_seq)) this.#owner.changed(id);
    if (timeline.high >= last_seq) return;
    timeline.want(timeline.high + 1, last_seq);
    this.#fill(timeline);
  }

  /** What is held is of another store, or may be: windows read anew. */
  reset(): void {
    this.#waitingToFill.clear();
    for (const timeline of this.#timelines.values()) {
      timeline.restart(true);
      this.#owner.changed(timeline.id);
    }
  }

  /** The user is no longer a member: what comes after a return does not join on. */
  forget(id: string): void {
    this.#waitingToFill.delete(id);
    this.#timelines.get(id)?.restart(true);
    this.#owner.changed(id);
  }

  /** Loads the newest page of a conversation whose entries are to be kept. Rejects with the server's refusal. */
  async open(id: string): Promise<void> {
    const timeline = this.of(id);
    if (timeline.isOpening || (timeline.isKept && timeline.isJoined)) return;
    timeline.keep();
    if (timeline.high !== undefined) {
      await this.older(id);
      return;
    }
    timeline.isOpening = true;
    const { era } = timeline;
    try {
      const page = await this.#history(id, { limit: PAGE_LIMIT });
      if (era !== timeline.era || !timeline.isOpening) return;
      this.#tell(timeline, timeline.open(page));
      void this.#renewUnclear(timeline);
      this.#fill(timeline);
    } catch (error) {
      if (era !== timeline.era) return;
      timeline.isOpening = false;
      if (!isUnopenedDirect(error, id, this.#core.me)) throw error;
      // The first message opens it: until then it is empty.
      this.#tell(timeline, timeline.open({ entries: [], more: false, first_seq: 0, last_seq: 0 }));
    }
  }

  /** Loads the page before what is held. */
  async older(id: string, limit = PAGE_LIMIT): Promise<void> {
    const timeline = this.of(id);
    const { era, low } = timeline;
    if (low <= 1) {
      timeline.isJoined = true; // nothing lies before
      return;
    }
    for (let fruitless = 0; ; ) {
      let page: HistoryPage;
      try {
        page = await this.#history(id, { to_seq: timeline.low - 1, limit: Math.min(Math.max(limit, 1), PAGE_LIMIT_MAX) });
      } catch (error) {
        if (era !== timeline.era) return;
        throw error;
      }
      if (era !== timeline.era || timeline.low !== low) return; // it began anew meanwhile
      if (timeline.prepend(page)) break;
      if (++fruitless < FRUITLESS_MAX) continue;
      // What lies before cannot be joined on without a hole.
      this.#core.emitter.emit("skipped", { conversation: id, from_seq: 1, to_seq: low - 1 });
      timeline.endAtHole();
      break;
    }
    this.#owner.changed(id);
    void this.#renewUnclear(timeline);
  }

  /** A chunk of a growing message. */
  grow(chunk: StreamFrame): void {
    const timeline = this.#timelines.get(chunk.conversation);
    const slot = timeline?.message(chunk.seq);
    if (!timeline || !slot) return;
    const grown = grow(slot, chunk);
    if (grown === undefined) void this.#renew(timeline, chunk.seq);
    else if (timeline.change(chunk.seq, () => grown)) this.#owner.changed(timeline.id);
  }

  async #renew(timeline: Timeline, seq: number): Promise<void> {
    const name = `${timeline.id} ${seq}`;
    if (this.#renewing.has(name)) return;
    this.#renewing.add(name);
    const { era } = timeline;
    try {
      const page = await this.#history(timeline.id, { from_seq: seq, to_seq: seq });
      if (era !== timeline.era) return;
      timeline.renew(page);
      this.#owner.changed(timeline.id);
    } catch (error) {
      this.#report(error);
    } finally {
      this.#renewing.delete(name);
    }
  }

  #tell(timeline: Timeline, handed: readonly Entry[]): void {
    timeline.trim(this.#owner.isWatched(timeline.id) ? SLOTS_MAX : SLOTS_UNWATCHED_MAX);
    if (handed.length > 0) this.#owner.handedOn(timeline.id, handed);
    this.#owner.changed(timeline.id);
    if (handed.some(({ kind, body }) => kind === "edit" && body === null)) void this.#renewUnclear(timeline);
  }

  /** Reads again what edits without a body have left unclear, and what the entries that overtook those pages have. */
  async #renewUnclear(timeline: Timeline): Promise<void> {
    for (let round = 0; round < FRUITLESS_MAX; round++) for (const seq of timeline.unclear) await this.#renew(timeline, seq);
  }

  /** A session is live: what could not be read before is read now. */
  up(): void {
    for (const timeline of this.#timelines.values()) {
      this.#fill(timeline);
      // Chunks that came meanwhile are not sent again: what still grew is read as it is now.
      for (const { entry } of timeline.slots) if (entry.stream === "open") void this.#renew(timeline, entry.seq);
      void this.#renewUnclear(timeline);
    }
  }

  #fill(timeline: Timeline): void {
    if (timeline.gap() === undefined || this.#filling.has(timeline.id) || this.#isEnded) return;
    this.#waitingToFill.add(timeline.id);
    this.#fillNext();
  }

  #fillNext(): void {
    for (const id of this.#waitingToFill) {
      if (this.#filling.size >= FILLS_AT_ONCE_MAX) return;
      this.#waitingToFill.delete(id);
      this.#filling.add(id);
      void this.#fillAll(this.of(id)).finally(() => {
        this.#filling.delete(id);
        this.#fill(this.of(id)); // what came to be missing meanwhile
        this.#fillNext();
      });
    }
  }

  async #fillAll(timeline: Timeline): Promise<void> {
    const { era } = timeline;
    const isOver = (): boolean => era !== timeline.era;
    let fruitless = 0;
    for (let gap = timeline.gap(); gap !== undefined; gap = timeline.gap()) {
      if (gap.to - gap.from + 1 > (timeline.isKept ? GAP_KEPT_MAX : GAP_UNSEEN_MAX)) {
        await this.#skip(timeline, gap, isOver);
        if (isOver()) return;
        continue;
      }
      let page: HistoryPage;
      try {
        page = await this.#history(timeline.id, { from_seq: gap.from, to_seq: gap.to, limit: FILL_LIMIT });
      } catch (error) {
        // With the session over nothing is known to be missing: a later one fills it.
        if (isOver() || this.#isEnded) return;
        // No longer to be read, or no longer there: said, and left out.
        this.#report(error);
        await this.#skip(timeline, gap, isOver);
        if (isOver()) return;
        continue;
      }
      if (isOver()) return;
      const before = timeline.high;
      const entries = page.entries.filter(({ conversation }) => conversation === timeline.id);
      this.#tell(timeline, timeline.offer(entries, page.conversation_last_seq));
      if (timeline.high !== before) fruitless = 0;
      else if (++fruitless >= FRUITLESS_MAX) {
        fruitless = 0;
        await this.#skip(timeline, timeline.gap() ?? gap, isOver);
        if (isOver()) return;
      }
    }
  }

  /** Leaves entries out, and says so. A window begins anew after them, so that what it shows stays without a hole. */
  async #skip(timeline: Timeline, gap: Gap, isOver: () => boolean): Promise<void> {
    this.#core.emitter.emit("skipped", { conversation: timeline.id, from_seq: gap.from, to_seq: gap.to });
    this.#tell(timeline, timeline.skipTo(gap.to));
    if (!timeline.isKept || timeline.slots.length >= PAGE_LIMIT) return;
    // So that the window is not left empty: what history has right before the place.
    await this.older(timeline.id).catch((error: unknown) => {
      if (!isOver()) this.#report(error);
    });
  }

  #history(conversation: string, query: HistoryQuery): Promise<HistoryPage> {
    return this.#core.asker.ask({ t: "history", conversation, ...query });
  }

  #report(error: unknown): void {
    if (!(error instanceof TidingsError)) throw error;
    if (!this.#isEnded) this.#core.emitter.emit("error", error);
  }

  get #isEnded(): boolean {
    return this.#core.link.status.get().state === "ended";
  }
}

function isUnopenedDirect(error: unknown, id: string, me: string): boolean {
  return error instanceof TidingsError && error.code === "not_found" && directPeer(id, me) !== undefined;
}
