// The heights of a long list's rows: measured where they were drawn, estimated elsewhere. Sums over many rows are kept by blocks, and
// a list that has grown is summed anew from the measured rows alone: neither a scroll nor a page costs all of 100,000 rows.
const ESTIMATE = 60;
const BLOCK = 256;

interface Measured {
  height: number;
  /** Where the row stood when the blocks were last added up, or since. */
  index: number;
}

export class Heights {
  readonly #measured = new Map<string, Measured>();
  #keys: readonly string[] = [];
  /** How many rows there were when the indexes were right. */
  #count = 0;
  #blocks: number[] | undefined;

  /** The rows as they are now; a row keeps its height by its key. */
  setKeys(keys: readonly string[]): void {
    if (keys === this.#keys) return;
    this.#keys = keys;
    this.#blocks = undefined;
  }

  of(index: number): number {
    return this.#measured.get(this.#keys[index] ?? "")?.height ?? ESTIMATE;
  }

  measured(index: number, height: number): void {
    const key = this.#keys[index];
    if (key === undefined) return;
    const blocks = (this.#blocks ??= this.#add());
    const row = this.#measured.get(key);
    const block = Math.floor(index / BLOCK);
    blocks[block] = (blocks[block] ?? 0) + height - (row?.height ?? ESTIMATE);
    if (row) row.height = height;
    else this.#measured.set(key, { height, index });
  }

  /** The rows from `from` up to, and without, `to`. */
  sum(from: number, to: number): number {
    return this.#before(to) - this.#before(from);
  }

  /** Every row has another width. */
  clear(): void {
    this.#measured.clear();
    this.#blocks = undefined;
  }

  #before(index: number): number {
    const blocks = (this.#blocks ??= this.#add());
    const whole = Math.floor(index / BLOCK);
    let total = 0;
    for (let block = 0; block < whole; block++) total += blocks[block] ?? 0;
    for (let row = whole * BLOCK; row < index; row++) total += this.of(row);
    return total;
  }

  #add(): number[] {
    const { length } = this.#keys;
    const blocks = Array.from({ length: Math.ceil(length / BLOCK) }, (_, block) => Math.min(BLOCK, length - block * BLOCK) * ESTIMATE);
    let places: ReadonlyMap<string, number> | undefined;
    for (const [key, row] of this.#measured) {
      // Rows have come before it, or after it; else all are looked through, once.
      const guess = [row.index, row.index + length - this.#count].find((index) => this.#keys[index] === key);
      const index = guess ?? (places ??= new Map(this.#keys.map((known, at) => [known, at]))).get(key);
      if (index === undefined) {
        this.#measured.delete(key);
        continue;
      }
      row.index = index;
      const block = Math.floor(index / BLOCK);
      blocks[block] = (blocks[block] ?? 0) + row.height - ESTIMATE;
    }
    this.#count = length;
    return blocks;
  }
}
