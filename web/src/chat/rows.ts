// From a timeline to the rows that are drawn: days, the line above what is new, and messages that belong together.
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

/** `readTo`: the newest entry that had been read when the reader came. */
export function rowsOf(items: readonly TimelineItem[], me: string, readTo: number | undefined): readonly Row[] {
  const firstNew = readTo === undefined ? undefined : items.find((item) => isNewTo(item, me, readTo))?.key;
  return items.map((item, index) => {
    const before = items[index - 1];
    const after = items[index + 1];
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

function isNewTo(item: TimelineItem, me: string, readTo: number): boolean {
  return item.is === "message" && item.state === "sent" && item.seq > readTo && item.from !== me;
}

function isOtherDay(one: number, other: number): boolean {
  return Math.abs(other - one) >= 86_400_000 || new Date(one).getDate() !== new Date(other).getDate();
}

function areTogether(one: TimelineItem, other: TimelineItem): boolean {
  return one.is === "message" && other.is === "message" && one.from === other.from && other.at - one.at < TOGETHER_MS;
}
