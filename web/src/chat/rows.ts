// From a timeline to the rows that are drawn: days, the line above what is new, and messages that belong together. A row is made when it
// is drawn: a history may have 100,000 of them.
import type { TimelineItem } from "@tidings/client";
import { dayText } from "../text.js";

const TOGETHER_MS = 5 * 60_000;

export interface Row {
  readonly key: string;
  readonly item: TimelineItem;
  /** The day, above the first row of it. */
  readonly day: string | undefined;
  /** What follows is new to the reader. */
  readonly isFirstNew: boolean;
  /** The first, and the last, of one sender's messages in a row. */
  readonly isFirst: boolean;
  readonly isLast: boolean;
}

/** The rows from `first` up to, and without, `last`. `firstNew` is the key of the first row that is new. */
export function rowsOf(items: readonly TimelineItem[], first: number, last: number, firstNew: string | undefined): readonly Row[] {
  return items.slice(first, last).map((item, offset) => {
    const before = items[first + offset - 1];
    const after = items[first + offset + 1];
    const isFirstNew = item.key === firstNew;
    const isNewDay = !before || isOtherDay(before.at, item.at);
    return {
      key: item.key,
      item,
      day: isNewDay ? dayText(item.at) : undefined,
      isFirstNew,
      isFirst: isNewDay || isFirstNew || !areTogether(before, item),
      isLast: !after || after.key === firstNew || isOtherDay(item.at, after.at) || !areTogether(item, after),
    };
  });
}

/** The first message of others after `readTo`, the newest entry that had been read when the reader came. */
export function firstNewOf(items: readonly TimelineItem[], me: string, readTo: number | undefined): string | undefined {
  if (readTo === undefined) return undefined;
  let key: string | undefined;
  for (let index = items.length - 1; index >= 0; index--) {
    const item = items[index];
    if (item === undefined || (item.is === "message" && item.state !== "sent")) continue;
    if (item.seq <= readTo) break;
    if (item.is === "message" && item.from !== me) key = item.key;
  }
  return key;
}

function isOtherDay(one: number, other: number): boolean {
  return Math.abs(other - one) >= 86_400_000 || new Date(one).getDate() !== new Date(other).getDate();
}

function areTogether(one: TimelineItem, other: TimelineItem): boolean {
  return one.is === "message" && other.is === "message" && one.from === other.from && other.at - one.at < TOGETHER_MS;
}
