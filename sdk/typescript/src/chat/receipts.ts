import type { ReceiptsSnapshot } from "../conversation.js";
import { Cell } from "../observable.js";
import type { ReceiptMark, ReceiptMove } from "../wire/server-frames.js";

// Counts of so many messages are kept; the oldest are let go.
const COUNTS_MAX = 500;

/** How far members have come, by conversation. Marks only move on. */
export class Receipts {
  readonly #cells = new Map<string, Cell<ReceiptsSnapshot>>();

  of(conversation: string): Cell<ReceiptsSnapshot> {
    let cell = this.#cells.get(conversation);
    if (!cell) this.#cells.set(conversation, (cell = new Cell<ReceiptsSnapshot>({ marks: new Map(), counts: new Map() })));
    return cell;
  }

  take(conversation: string, some: readonly ReceiptMark[], moved: readonly ReceiptMove[]): void {
    const cell = this.of(conversation);
    const before = cell.get();
    const marks = new Map(before.marks);
    for (const { user, read_seq, delivered_seq } of some) {
      const mark = marks.get(user) ?? { delivered: 0, read: 0 };
      const read = Math.max(mark.read, read_seq ?? 0);
      // What was read was delivered.
      marks.set(user, { read, delivered: Math.max(mark.delivered, delivered_seq ?? 0, read) });
    }
    const counts = new Map(before.counts);
    for (const { what, from_seq, to_seq, count } of moved) {
      for (let seq = Math.max(from_seq, to_seq - COUNTS_MAX + 1); seq <= to_seq; seq++) {
        const counted = counts.get(seq) ?? { delivered: 0, read: 0 };
        counts.set(seq, { ...counted, [what]: counted[what] + count });
      }
    }
    if (counts.size > COUNTS_MAX) {
      const oldest = [...counts.keys()].sort((a, b) => a - b).slice(0, counts.size - COUNTS_MAX);
      for (const seq of oldest) counts.delete(seq);
    }
    cell.set({ marks, counts });
  }

  /** What was told before may be of another store. */
  clear(): void {
    for (const cell of this.#cells.values()) cell.set({ marks: new Map(), counts: new Map() });
  }
}
