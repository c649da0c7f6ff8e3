import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { ConversationView, Tidings } from "@tidings/client";
import { directPeer } from "@tidings/client";
import type { Assistant } from "../demo/assistant.js";
import { Cell, useObservable } from "./cell.js";
import type { Drafts } from "./drafts.js";
import type { Names } from "./names.js";

export interface DemoUser {
  readonly id: string;
  readonly name: string;
  readonly token: string;
}

/** What every part of the messenger uses. */
export interface Session {
  readonly tidings: Tidings;
  readonly names: Names;
  readonly drafts: Drafts;
  readonly people: readonly DemoUser[];
  readonly assistant: Assistant;
  readonly switchUser: () => void;
}

export const SessionContext = createContext<Session | undefined>(undefined);

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("a part of the messenger stands outside of it");
  return session;
}

const NOBODY = new Cell("");

export function useName(user: string | undefined): string {
  const { names } = useSession();
  return useObservable(user === undefined ? NOBODY : names.of(user));
}

/** The other user of a direct conversation. */
export function usePeer(conversation: string): string | undefined {
  return directPeer(conversation, useSession().tidings.user);
}

export function useTitle(conversation: string, view: ConversationView | undefined): string {
  const peer = usePeer(conversation);
  const name = useName(peer);
  return view?.title ?? view?.name ?? (peer === undefined ? conversation : name);
}
