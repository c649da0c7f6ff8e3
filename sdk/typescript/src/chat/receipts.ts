import type { MemberMark, ReceiptCounts, ReceiptsSnapshot } from "../conversation.js";
import { TidingsError } from "../errors.js";
import { Cell } from "../observable.js";
import type { ReceiptMark, ReceiptMove } from "../wire/server-frames.js";
import type { Core } from "./core.js";

// Counts of so many messages are kept; the oldest are let go.
const COUNTS_MAX = 500;

const NOTHING: ReceiptsSnapshot = { marks: new Map(), counts: new Map() };

/**
 * How far members have come, by conversation. Where somebody looks it is read once in a session, and again when members or settings have
 * changed; what moves later is told.
 */
export class Receipts {
  readonly #core: Core;
  readonly #cells = new Map<string, Cell<ReceiptsSnapshot>>();
  /** The conversations of which it is read, or on its way. */
  readonly #read = new Set<string>();

  constructor(core: Core) {
    this.#core = core;
  }

  of(conversation: string): Cell<ReceiptsSnapshot> {
    let cell = this.#cells.get(conversation);
    if (!cell) {
      cell = new Cell<ReceiptsSnapshot>(NOTHING, (isUsed) => {
        if (isUsed) void this.#load(conversation);
      });
      this.#cells.set(conversation, cell);
    }
    return cell;
  }

  /** A new session was told of nothing that moved before. */
  up(): void {
    this.#read.clear();
    for (const [id, cell] of this.#cells) if (cell.isUsed) void this.#load(id);
  }

  /** The conversation has other members, or shows something else of them. */
  changed(conversation: string): void {
    this.#read.delete(conversation);
    if (this.#cells.get(conversation)?.isUsed) void this.#load(conversation);
  }

  async #load(conversation: string): Promise<void> {
    if (this.#read.has(conversation) || !this.#core.link.isUp) return;
    this.#read.add(conversation);
    try {
      const { marks, moved } = await this.#core.asker.ask({ t: "receipts", conversation });
      this.#seed(conversation, marks ?? [], moved ?? []);
    } catch (error) {
      if (!(error instanceof TidingsError)) throw error;
      // One that shows none, or does not exist yet: what is told live is all there is.
      if (error.code === "forbidden") this.of(conversation).set(NOTHING);
    }
  }

  /** All marks, as the server has them: those that were told meanwhile may be newer. */
  #seed(conversation: string, all: readonly ReceiptMark[], moved: readonly ReceiptMove[]): void {
    const known = this.of(conversation).get().marks;
    const marks = new Map(all.map((mark): [string, MemberMark] => [mark.user, movedOn(known.get(mark.user), mark)]));
    this.of(conversation).set({ marks, counts: counted(new Map(), moved) });
  }

  take(conversation: string, some: readonly ReceiptMark[], moved: readonly ReceiptMove[]): void {
    const cell = this.of(conversation);
    const before = cell.get();
    const marks = new Map(before.marks);
    for (const mark of some) marks.set(mark.user, movedOn(marks.get(mark.user), mark));
    cell.set({ marks, counts: counted(before.counts, moved) });
  }

  /** What was told before may be of another store. */
  clear(): void {
    for (const cell of this.#cells.values()) cell.set(NOTHING);
  }
}

/** A mark only moves on. */
function movedOn(before: MemberMark | undefined, { read_seq, delivered_seq }: ReceiptMark): MemberMark {
  const read = Math.max(before?.read ?? 0, read_seq ?? 0);
  // What was read was delivered.
  return { read, delivered: Math.max(before?.delivered ?? 0, delivered_seq ?? 0, read) };
}

function counted(before: ReadonlyMap<number, ReceiptCounts>, moved: readonly ReceiptMove[]): ReadonlyMap<number, ReceiptCounts> {
  const counts = new Map(before);
  for (const { what, from_seq, to_seq, count } of moved) {
    for (let seq = Math.max(from_seq, to_seq - COUNTS_MAX + 1); seq <= to_seq; seq++) {
      const known = counts.get(seq) ?? { delivered: 0, read: 0 };
      counts.set(seq, { ...known, [what]: known[what] + count });
    }
  }
  if (counts.size > COUNTS_MAX) {
    const oldest = [...counts.keys()].sort((a, b) => a - b).slice(0, counts.size - COUNTS_MAX);
    for (const seq of oldest) counts.delete(seq);
  }
  return counts;
}
