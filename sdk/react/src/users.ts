// The connection, and what other users do right now.
import type { ConnectionStatus, Conversation, PresenceChange, UserCard } from "@tidings/client";
import { useEffect } from "react";
import { useTidings } from "./context.js";
import { useObservable } from "./observe.js";

/** Whether there is a connection, and what follows when there is none. */
export function useStatus(): ConnectionStatus {
  return useObservable(useTidings().status);
}

/** Who types in a conversation now, without this user. */
export function useTyping(conversation: Conversation | string): readonly string[] {
  const tidings = useTidings();
  const chat = typeof conversation === "string" ? tidings.conversation(conversation) : conversation;
  return useObservable(chat.typingUsers);
}

/** How a user is shown: undefined until it is known, with the id alone if there is no such user. Components that show users together ask for them together. */
export function useUser(user: string): UserCard | undefined {
  return useObservable(useTidings().users.of(user));
}

/**
 * Whether a user is online: watched while the component is there, undefined until it is known. Users may be watched with whom there is
 * a direct conversation, or who are members of the same `group`.
 */
export function usePresence(user: string, group?: string): PresenceChange | undefined {
  const { presence } = useTidings();
  useEffect(() => presence.watch([user], group), [presence, user, group]);
  return useObservable(presence.of(user));
}
