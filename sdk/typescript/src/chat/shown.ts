// The items of a window, made anew for what has changed: of 100,000 slots that is one, or a page.
import type { TimelineItem } from "../message.js";
import { itemOfSlot } from "./items.js";
import type { Slot } from "./slots.js";

export class ShownItems {
  /** The slots as they were, and the item of each: slots that stand for none have none. */
  #slots: readonly Slot[] = [];
  #items: readonly (TimelineItem | undefined)[] = [];
  #low = 1;

  /** The items of slots of which the first has the number `low`. */
  of(slots: readonly Slot[], low: number): TimelineItem[] {
    const moved = low - this.#low;
    const items = slots.map((slot, index) => (this.#slots[index + moved] === slot ? this.#items[index + moved] : itemOfSlot(slot)));
    this.#slots = slots.slice(); // the timeline changes its own in place
    this.#items = items;
    this.#low = low;
    return items.filter((item) => item !== undefined);
  }
}
