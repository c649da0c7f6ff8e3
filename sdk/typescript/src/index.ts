// The Tidings client for browsers, Node and React Native.
//
// `connect` opens one session of a user and keeps it: it resumes after breaks, refreshes tokens, and sends what was written
// meanwhile. What an app shows are observables (`get`, `subscribe`) that keep themselves right. The client knows nothing of how
// an app draws, and keeps nothing beyond its page unless it is given a storage.
//
// Read in this order: `tidings.ts` and `conversation.ts` (what an app uses), `wire/` (what goes over the connection), `session/` (one
// connection and its state machine), `chat/` (timelines, the list, what waits to be sent), `tabs/`, `storage/`; `platform.ts` (what the
// runtime has) when a part asks it.
export type {
  Account,
  AccountListOptions,
  AssignmentEvent,
  Away,
  BlockedUser,
  BlocksPage,
  Connect,
  Connecting,
  ConnectionStatus,
  ConnectOptions,
  Conversations,
  ConversationsPage,
  ConversationsSnapshot,
  Ended,
  MembershipEvent,
  MentionsPage,
  OfflinePush,
  Online,
  PopupAnswer,
  Popups,
  Presence,
  ReadEvent,
  SignalEvent,
  SkippedEvent,
  Tidings,
  TidingsEvents,
  TypingEvent,
  Users,
  WebPushOptions,
} from "./tidings.js";
export type {
  AssignOptions,
  Conversation,
  EditOptions,
  EntriesPage,
  GrowingMessage,
  Member,
  MemberMark,
  MemberReceipt,
  MembersPage,
  MessageReceipts,
  Messages,
  MessagesSnapshot,
  MessageVersion,
  ReactionsPage,
  ReceiptCounts,
  ReceiptsSnapshot,
  Invite,
  JoinRequest,
  JoinRequestsPage,
  MadeInvite,
  Restriction,
  RestrictionKind,
  RestrictionsPage,
  SendOptions,
  UserReaction,
} from "./conversation.js";
export type { Message, MessageContent, Notice, PendingMessage, RefusedMessage, SentMessage, TimelineItem } from "./message.js";
export { directPeer } from "./chat/direct.js";
export type { PushManagerLike, PushOptionsLike, PushSubscriptionLike, ServiceWorkerRegistrationLike } from "./chat/offline-push.js";
export { connect } from "./connect.js";
export { textOf } from "./message.js";
export type { Observable } from "./observable.js";
export { CLIENT_CODES, TidingsError } from "./errors.js";
export { indexedDbStorage, type DatabaseFactory } from "./storage/indexed-db.js";
export { memoryStorage } from "./storage/memory.js";
export type { KeyValueStorage } from "./storage/storage.js";
export type { SocketLike, WebSocketConstructor } from "./session/socket.js";
export type { TransportName } from "./session/transport.js";
export type { Attention, Expires, Preferences, ListFilter } from "./wire/client-frames.js";
export type { ConversationKind, ConversationView, Entry, ExpiresAt, Mark, Reaction, ReplyQuote, Role, SendReceipt, UserCard } from "./wire/entries.js";
export type { Json, JsonObject } from "./wire/json.js";
export type {
  AppAction, AppEvent, DismissAction, OpenAction, PopupAction, PopupButton, PopupContent, PopupDecision, PopupEvent, PopupQuestion, Push,
} from "./wire/popups.js";
export type { ApnsToken, FcmToken, HuaweiToken, PushToken, WebPushSubscription, WebPushToken } from "./wire/push-tokens.js";
export type { PresenceChange, ReceiptMark } from "./wire/server-frames.js";
