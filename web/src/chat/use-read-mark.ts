import type { Conversation, ConversationView } from "@tidings/client";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useSession } from "../state/context.js";

function useIsVisible(): boolean {
  const [isVisible, setVisible] = useState(document.visibilityState === "visible");
  useEffect(() => {
    const look = (): void => setVisible(document.visibilityState === "visible");
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return isVisible;
}

/**
 * Marks the conversation as read while its end is seen. Answers the entry up to which it was read before what is new came: the line
 * "New" stands after it.
 */
export function useReadMark(chat: Conversation, view: ConversationView | undefined, isEndShown: boolean): number | undefined {
  const { tidings } = useSession();
  const isListRead = tidings.conversations.get().state === "ready";
  const isVisible = useIsVisible();
  const canRead = isEndShown && isVisible;
  const [readTo, setReadTo] = useState<number>();
  const hasCome = view !== undefined;
  const unread = view?.unread ?? 0;
  const lastSeq = view?.last_seq ?? 0;

  // A conversation that is opened here, by its first message, has nothing that came before its reader.
  const hasPast = useRef(view !== undefined || !isListRead);
  useLayoutEffect(() => {
    if (view && view.unread > 0 && hasPast.current) setReadTo(view.read_seq);
  }, [hasCome]); // the list may come after the page

  useEffect(() => {
    if (!canRead && unread > 0) setReadTo((known) => (known !== undefined && known >= (view?.read_seq ?? 0) ? known : view?.read_seq));
  }, [canRead, unread > 0]);

  useEffect(() => {
    if (!canRead || !view || view.read_seq >= lastSeq) return;
    chat.markRead().catch(() => undefined); // kept by the client while there is no connection
  }, [canRead, lastSeq, view?.read_seq, chat]);

  return readTo;
}
