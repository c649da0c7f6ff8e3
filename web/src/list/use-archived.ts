import type { ConversationView } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { useObservable } from "../state/cell.js";
import { useSession } from "../state/context.js";

/** The archived conversations: read when the window connects and when the list changes, since a line may have come or gone. */
export function useArchived(items: readonly ConversationView[]): readonly ConversationView[] {
  const { tidings } = useSession();
  const [archived, setArchived] = useState<readonly string[]>([]);
  const { state } = useObservable(tidings.status);
  const listed = items.map(({ id }) => id).sort().join(" ");
  useEffect(() => {
    if (state !== "online") return undefined;
    let isOver = false;
    tidings.conversations.page("archived").then(
      ({ conversations }) => !isOver && setArchived(conversations.map(({ id }) => id)),
      () => undefined, // asked again with the next connection
    );
    return () => {
      isOver = true;
    };
  }, [tidings, state, listed]);
  // Their counts and last messages are the client's, which keeps them right.
  useObservable(tidings.conversations);
  return archived.flatMap((id) => tidings.conversation(id).view.get() ?? []).filter((view) => view.archived === true);
}
