// The list of conversations, and one of them.
import type { Conversation, ConversationsSnapshot, ConversationView, MessagesSnapshot, ReceiptsSnapshot } from "@tidings/client";
import { useTidings } from "./context.js";
import { useObservable, useSelected } from "./observe.js";

/** A conversation, or its id. */
export type Which = Conversation | string;

function useWhich(which: Which): Conversation {
  const tidings = useTidings();
  return typeof which === "string" ? tidings.conversation(which) : which;
}

/** The user's list: pinned ones first, then the latest active. `useTidings().conversations.loadMore()` loads the next page. */
export function useConversations(): ConversationsSnapshot {
  return useObservable(useTidings().conversations);
}

/** The conversation of this id, to send, edit, mark as read: the same object at each rendering. It shows nothing by itself. */
export function useConversation(id: string): Conversation {
  return useTidings().conversation(id);
}

/** The direct conversation with a user; the first message opens it. */
export function useDirect(user: string): Conversation {
  return useTidings().direct(user);
}

/**
 * The loaded part of a timeline, oldest first. Its newest page is loaded when the first component shows it; `messages.loadOlder()` of the
 * conversation loads the page before.
 */
export function useTimeline(conversation: Which): MessagesSnapshot {
  return useObservable(useWhich(conversation).messages);
}

/** The conversation's line of the list; undefined while the user has none. */
export function useConversationView(conversation: Which): ConversationView | undefined {
  return useObservable(useWhich(conversation).view);
}

/** How far members have come, where the conversation shows it. */
export function useReceipts(conversation: Which): ReceiptsSnapshot {
  return useObservable(useWhich(conversation).receipts);
}

/** Unread messages of all conversations that are not muted, for a badge. Of one conversation: `useConversationView(id)?.unread`. */
export function useUnread(): number {
  return useSelected(useTidings().conversations, ({ unread }) => unread);
}

/** Unread messages that mention this user. */
export function useMentions(): number {
  return useSelected(useTidings().conversations, ({ mentions }) => mentions);
}
