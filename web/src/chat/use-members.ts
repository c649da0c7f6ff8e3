import type { Conversation, Member } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { directPeer } from "@tidings/client";
import { useObservable } from "../state/cell.js";
import { useSession } from "../state/context.js";
import { useNewestNotice } from "./use-newest-notice.js";

// Larger groups show the first of their members.
const MEMBERS_MAX = 200;

/** The members of a group, read again when they change. */
export function useMembers(chat: Conversation): readonly Member[] {
  const { tidings } = useSession();
  const [members, setMembers] = useState<readonly Member[]>([]);
  const isGroup = useObservable(chat.view) !== undefined && directPeer(chat.id, tidings.user) === undefined;
  const changedAt = useNewestNotice(chat, "member_change");
  useEffect(() => {
    if (!isGroup) return undefined;
    let isOver = false;
    chat.members({ limit: MEMBERS_MAX }).then(
      (page) => !isOver && setMembers(page.members),
      () => undefined, // who may not see them sees none
    );
    return () => {
      isOver = true;
    };
  }, [chat, isGroup, changedAt]);
  return members;
}
