import type { Conversation, Notice } from "@tidings/client";
import { useObservable } from "../state/cell.js";

// A change comes at the end; farther back it is known.
const NEWEST = 200;

/** Stays the same until the next notice of this kind: what is read again then depends on it. */
export function useNewestNotice(chat: Conversation, kind: Notice["kind"]): string | undefined {
  const { items } = useObservable(chat.messages);
  return items.slice(-NEWEST).findLast((item) => item.is === "notice" && item.kind === kind)?.key;
}
