import type { Conversation } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { useObservable } from "../state/cell.js";
import { useSession } from "../state/context.js";
import { useNewestNotice } from "./use-newest-notice.js";

/** Whether this user may mention all members. In a direct conversation there is no use in it: the other one has a name. */
export function useMayMentionAll(chat: Conversation): boolean {
  const { tidings } = useSession();
  const view = useObservable(chat.view);
  const [allowed, setAllowed] = useState<string>();
  const hasMembers = view !== undefined && view.kind !== "direct";
  const changedAt = useNewestNotice(chat, "conversation_change");
  useEffect(() => {
    if (!hasMembers) return undefined;
    let isOver = false;
    tidings.http("GET", `/v1/conversations/${encodeURIComponent(chat.id)}`).then(
      (card) => !isOver && setAllowed((card as { readonly mention_all?: string }).mention_all),
      () => undefined, // as long as it is not known it is not offered
    );
    return () => {
      isOver = true;
    };
  }, [chat, hasMembers, changedAt]);
  return hasMembers && (allowed === "members" || (allowed === "admins" && view.role !== "member"));
}
