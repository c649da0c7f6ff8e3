import type { ConversationView } from "@tidings/client";
import { useEffect, useState } from "preact/hooks";
import { useSession } from "../state/context.js";

// Who types on is not answered for each letter.
const ASK_AFTER_MS = 200;
const FOUND_MAX = 50;
// A page may be empty and lead on.
const PAGES_MAX = 5;

const NONE: readonly ConversationView[] = [];

/** Conversations that the server finds a text in, for a list that is not loaded to its end. */
export function useSearch(text: string, isWanted: boolean): readonly ConversationView[] {
  const { tidings } = useSession();
  const [found, setFound] = useState(NONE);
  const wanted = isWanted ? text.trim() : "";
  useEffect(() => {
    if (wanted === "") {
      setFound(NONE);
      return undefined;
    }
    let isOver = false;
    const ask = async (): Promise<void> => {
      const all: ConversationView[] = [];
      let after: string | undefined;
      for (let page = 0; page < PAGES_MAX && all.length < FOUND_MAX; page++) {
        const { conversations, next } = await tidings.conversations.search(wanted, { limit: FOUND_MAX, ...(after !== undefined && { after }) });
        all.push(...conversations);
        after = next;
        if (next === undefined) break;
      }
      if (!isOver) setFound(all);
    };
    const timer = setTimeout(() => void ask().catch(() => undefined), ASK_AFTER_MS); // the loaded lines are searched anyhow
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [wanted, tidings]);
  return found;
}
