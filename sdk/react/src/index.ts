// Hooks over the Tidings client.
//
// The client keeps what an app shows in observables; a hook here is `useSyncExternalStore` over one of them, and nothing more. What
// changes something is the client's own: `useTidings()` and `useConversation(id)` hand it out. No hook keeps a copy of what the client
// knows, so two components on one conversation never differ.
//
// Read in this order: `context.ts` (who is signed in), `observe.ts` (one observable, one component), `conversations.ts`, `users.ts`,
// `events.ts`, `popups.ts`.
"use client"; // a framework with server components renders what uses hooks in the browser

export { TidingsProvider, useConnect, useTidings, type ConnectFailed, type Connecting, type ConnectReady, type ConnectState } from "./context.js";
export { useObservable } from "./observe.js";
export { useConversation, useConversations, useConversationView, useDirect, useMentions, useReceipts, useTimeline, useUnread, type Which } from "./conversations.js";
export { usePresence, useStatus, useTyping, useUser } from "./users.js";
export { useSignal, useTidingsEvent } from "./events.js";
export { usePopups, type ShownPopup } from "./popups.js";
