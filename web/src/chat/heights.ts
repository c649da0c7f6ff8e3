// The heights of a long list's rows: measured where they were drawn, estimated elsewhere. Sums over many rows are kept by blocks, so
// that a scroll through 100,000 rows adds up hundreds of numbers and not all of them.
const ESTIMATE = 60;
const BLOCK = 256;

export class Heights {
  readonly #measured = new Map<string, number>();
  #keys: readonly string[] = [];
  #blocks: number[] | undefined;

  /** The rows as they are now; a row keeps its height by its key. */
  setKeys(keys: readonly string[]): void {
    if (keys === this.#keys) return;
    this.#keys = keys;
    this.#blocks = undefined;
  }

  of(index: number): number {
    return this.#measured.get(this.#keys[index] ?? "") ?? ESTIMATE;
  }

  measured(index: number, height: number): void {
    const key = this.#keys[index];
    if (key === undefined) return;
    const before = this.of(index);
    if (before === height && this.#measured.has(key)) return;
    this.#measured.set(key, height);
    const block = Math.floor(index / BLOCK);
    if (this.#blocks?.[block] !== undefined) this.#blocks[block] += height - before;
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
    const blocks: number[] = [];
    for (let start = 0; start < this.#keys.length; start += BLOCK) {
      const end = Math.min(start + BLOCK, this.#keys.length);
      let total = 0;
      for (let row = start; row < end; row++) total += this.of(row);
      blocks.push(total);
    }
    return blocks;
  }
}
