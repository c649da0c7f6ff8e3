// One conversation's entries, in order: a pure part without a connection.
//
// Invariant: everything up to `high` was handed on, once and in order; what came too early waits; `slots` is one unbroken range
// low..=high. So low + slots.length = high + 1.
import type { Entry, HistoryPage } from "../wire/entries.js";
import { changesOf, previewChangeOf, slotOf, withoutCleared, type MessageSlot, type Slot } from "./slots.js";

// What comes early is bounded; what does not fit is read from history.
const EARLY_MAX = 1_000;

/** Entries that are missing before something that is known to exist. */
export interface Gap {
  readonly from: number;
  readonly to: number;
}

export class Timeline {
  readonly id: string;
  /** The newest entry that was handed on; undefined while the place in the timeline is not known. */
  high: number | undefined;
  /** Whether entries are kept for a window, or only handed on. */
  isKept = false;
  /** The newest page is on its way: without a place, entries wait for it. */
  isOpening = false;
  hasOlder = false;
  /** Whether a page of history stands before what came live. */
  isJoined = false;
  /** Counts restarts: what was asked before one is of no use after it. */
  era = 0;
  #slots: Slot[] = [];
  #low = 1;
  /** The user has cleared the history up to here. */
  #cleared = 0;
  readonly #early = new Map<number, { readonly entry: Entry; readonly asOf: number }>();
  #wanted = 0;
  /** Up to here entries are held that were never handed on, since a page brought them. */
  #silentTo = 0;

  constructor(id: string, high?: number) {
    this.id = id;
    this.high = high;
    this.#low = (high ?? 0) + 1;
  }

  get slots(): readonly Slot[] {
    return this.#slots;
  }

  /** The number of the first slot, or of the first that could come. */
  get low(): number {
    return this.#low;
  }

  /** Takes entries from anywhere, in any order, and answers with those that are handed on now, in order. */
  offer(entries: readonly Entry[], asOf?: number): readonly Entry[] {
    const handed: Entry[] = [];
    for (const entry of entries) {
      if (this.high === undefined && !this.isOpening) this.#place(entry.seq - 1);
      if (this.high !== undefined && entry.seq <= this.high) {
        // It came before, or a page overtook it: from it on the page's entries are news.
        if (entry.seq <= this.#silentTo) handed.push(...this.#announce(entry.seq));
        continue;
      }
      if (!this.#early.has(entry.seq)) this.#early.set(entry.seq, { entry, asOf: asOf ?? entry.seq });
      if (this.#early.size > EARLY_MAX) this.#leaveOutNewest();
    }
    return [...handed, ...this.#handOn()];
  }

  /** Entries up to `to` exist, of which none below `from` were missed. */
  want(from: number, to: number): void {
    if (this.high === undefined && !this.isOpening) this.#place(from - 1);
    this.#wanted = Math.max(this.#wanted, to);
  }

  /** What has to be read from history before anything more can be handed on. */
  gap(): Gap | undefined {
    if (this.high === undefined) return undefined;
    const before = this.#early.size > 0 ? Math.min(...this.#early.keys()) - 1 : this.#wanted;
    return before > this.high ? { from: this.high + 1, to: before } : undefined;
  }

  /** Goes on after `to` without what lies before, and answers with what is handed on then. */
  skipTo(to: number): readonly Entry[] {
    for (const seq of this.#early.keys()) if (seq <= to) this.#early.delete(seq);
    this.#place(to);
    return this.#handOn();
  }

  /** Forgets its place and everything that it holds; what waits stays unless the store is another one. */
  restart(isAnotherStore: boolean): void {
    this.era += 1;
    this.high = undefined;
    this.#slots = [];
    this.#low = 1;
    this.hasOlder = false;
    this.#silentTo = 0;
    this.isJoined = false;
    this.isOpening = false;
    this.#cleared = 0;
    if (!isAnotherStore) return;
    this.#early.clear();
    this.#wanted = 0;
  }

  /** Begins to keep entries, from the next one on. */
  keep(): void {
    if (this.isKept) return;
    this.isKept = true;
    this.hasOlder = (this.high ?? 0) > 0;
  }

  letGo(): void {
    this.isKept = false;
    this.isJoined = false;
    this.#slots = [];
    this.#low = (this.high ?? 0) + 1;
  }

  /** The newest page, of a timeline without a place: gives it one. Answers with what is handed on after the page. */
  open(page: HistoryPage): readonly Entry[] {
    const last = page.entries.reduce((newest, { seq }) => Math.max(newest, seq), 0);
    this.isOpening = false;
    const firstEarly = Math.min(...this.#early.keys());
    this.#place(last > 0 ? last : (page.conversation_last_seq ?? page.last_seq ?? 0));
    this.prepend(page);
    this.#silentTo = last;
    return [...(firstEarly <= last ? this.#announce(firstEarly) : []), ...this.#handOn()];
  }

  /** A page of entries before the first slot. Takes those that join on without a hole; false: none did, and there are some. */
  prepend(page: HistoryPage): boolean {
    const bySeq = new Map(page.entries.map((entry) => [entry.seq, entry]));
    const asOf = page.conversation_last_seq ?? page.last_seq ?? 0;
    const taken: Slot[] = [];
    let seq = this.#low - 1;
    for (let entry = bySeq.get(seq); entry !== undefined; entry = bySeq.get(--seq)) taken.push(this.#slotOf(entry, Math.max(asOf, entry.seq)));
    if (taken.length > 0) {
      this.#slots = [...taken.reverse(), ...this.#slots];
      this.#low -= taken.length;
      this.#applyFrom(asOf + 1);
    }
    this.isJoined = true;
    const isMissing = [...bySeq.keys()].some((other) => other < this.#low);
    this.hasOlder = this.#low > 1 && (page.more || isMissing);
    return taken.length > 0 || !isMissing;
  }

  /** There is a hole before the first slot that history does not fill: what lies before cannot be joined on. */
  endAtHole(): void {
    this.hasOlder = false;
  }

  /** Entries as they are now in history, in place of those that are held. */
  renew(page: HistoryPage): void {
    const asOf = page.conversation_last_seq ?? page.last_seq ?? 0;
    for (const entry of page.entries) {
      const index = entry.seq - this.#low;
      if (this.#slots[index] !== undefined) this.#slots[index] = this.#slotOf(entry, Math.max(asOf, entry.seq));
    }
    this.#slots = [...this.#slots];
    this.#applyFrom(asOf + 1);
  }

  message(seq: number): MessageSlot | undefined {
    const slot = this.#slots[seq - this.#low];
    return slot?.is === "message" ? slot : undefined;
  }

  /** The messages that have to be read again. */
  get unclear(): readonly number[] {
    return this.#slots.filter((slot) => slot.is === "message" && (slot.isUnclear || slot.isQuoteUnclear)).map(({ entry }) => entry.seq);
  }

  /** Changes a message that is held; answers whether it did. */
  change(seq: number, change: (slot: MessageSlot) => MessageSlot): boolean {
    const before = this.message(seq);
    if (!before) return false;
    const after = change(before);
    if (after === before) return false;
    this.#slots[seq - this.#low] = after;
    return true;
  }

  /** What an entry changes in the messages that are held; answers whether it did. */
  apply(entry: Entry): boolean {
    let isChanged = false;
    for (const [seq, change] of changesOf(entry)) isChanged = this.change(seq, change) || isChanged;
    return this.#changePreviews(entry) || isChanged;
  }

  #changePreviews(entry: Entry): boolean {
    const preview = previewChangeOf(entry);
    return preview !== undefined && this.#changeAnswers(preview.target, preview.change);
  }

  /** Changes the messages that answer another one; answers whether there are any. */
  #changeAnswers(target: number, change: (slot: MessageSlot) => MessageSlot): boolean {
    if (target <= this.#cleared) return false;
    const answers = this.#slots.filter(({ entry }) => entry.reply_to?.seq === target);
    for (const { entry } of answers) this.change(entry.seq, change);
    return answers.length > 0;
  }

  /** What this user's own change was answered with: shown until the entry that tells of the change comes. Answers whether it changed something. */
  answer(entry: Entry): boolean {
    let isChanged = false;
    for (const [seq, change] of changesOf(entry)) {
      const answered = (slot: MessageSlot): MessageSlot => {
        const after = change(slot);
        return after === slot ? slot : { ...after, isAnswered: true };
      };
      isChanged = this.change(seq, answered) || isChanged;
    }
    // An answer that is no news of the message is none of its previews.
    if (isChanged) this.#changePreviews(entry);
    return isChanged;
  }

  /** The user has cleared the history up to here; answers whether something was held of it. */
  clearTo(seq: number): boolean {
    if (seq <= this.#cleared) return false;
    this.#cleared = seq;
    const isQuoted = this.#slots.some(({ entry }) => withoutCleared(entry, seq) !== entry);
    if (isQuoted) this.#slots = this.#slots.map((slot) => ({ ...slot, entry: withoutCleared(slot.entry, seq) }));
    const count = Math.min(this.#slots.length, seq - this.#low + 1);
    if (count <= 0) return isQuoted;
    this.#slots = this.#slots.slice(count);
    this.#low += count;
    this.hasOlder = false;
    return true;
  }

  #slotOf(entry: Entry, asOf: number): Slot {
    return slotOf(withoutCleared(entry, this.#cleared), asOf);
  }

  /** Lets go of the oldest slots above a number of them. */
  trim(slotsMax: number): void {
    const surplus = this.#slots.length - slotsMax;
    if (surplus <= 0) return;
    this.#slots = this.#slots.slice(surplus);
    this.#low += surplus;
    this.hasOlder = true;
  }

  /** Puts back what was stored. */
  restore(slots: readonly Slot[], high: number, hasOlder: boolean): void {
    this.high = high;
    this.#slots = [...slots];
    this.#low = high + 1 - slots.length;
    this.hasOlder = hasOlder;
    this.isKept = true;
    this.isJoined = true;
  }

  /** A page has messages as they were when it was read: entries that came since, before the page did, change them again. */
  #applyFrom(seq: number): void {
    for (const { entry } of this.#slots.slice(Math.max(0, seq - this.#low))) this.apply(entry);
  }

  #place(high: number): void {
    this.high = high;
    this.#slots = [];
    this.#low = high + 1;
    this.#silentTo = 0;
    this.isJoined = false;
    this.hasOlder = high > 0;
    for (const seq of this.#early.keys()) if (seq <= high) this.#early.delete(seq);
  }

  /** Entries of the newest page that also came live, and those after them. */
  #announce(from: number): readonly Entry[] {
    const entries = this.#slots.filter(({ entry }) => entry.seq >= from && entry.seq <= this.#silentTo).map(({ entry }) => entry);
    this.#silentTo = 0;
    return entries;
  }

  #handOn(): readonly Entry[] {
    const handed: Entry[] = [];
    if (this.high === undefined) return handed;
    for (let next = this.#early.get(this.high + 1); next !== undefined; next = this.#early.get(this.high + 1)) {
      this.high += 1;
      this.#early.delete(this.high);
      handed.push(next.entry);
      if (this.isKept) {
        this.#slots.push(this.#slotOf(next.entry, next.asOf));
        this.apply(next.entry);
      }
    }
    if (!this.isKept) this.#low = this.high + 1;
    return handed;
  }

  #leaveOutNewest(): void {
    const newest = Math.max(...this.#early.keys());
    this.#early.delete(newest);
    this.#wanted = Math.max(this.#wanted, newest);
  }
}
