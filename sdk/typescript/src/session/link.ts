// What the chat side knows of a connection: its own session, or that of another tab.
import type { TidingsError } from "../errors.js";
import type { Observable } from "../observable.js";
import type { ConnectionStatus } from "../tidings.js";
import type { Attention, NoticeFrame, RequestFrame } from "../wire/client-frames.js";
import type { SendReceipt } from "../wire/entries.js";
import type { BoundFrame, ConversationsFrame, HistoryFrame, PopupFrame, PresenceFrame, ReceiptsFrame, ServerFrame, UnreadFrame } from "../wire/server-frames.js";

interface Done {
  readonly ref?: number;
}

/** What each request is answered with. */
export interface Answers {
  send: SendReceipt;
  edit: SendReceipt;
  recall: SendReceipt;
  stream_begin: SendReceipt;
  stream_end: SendReceipt;
  history: HistoryFrame;
  conversations: ConversationsFrame;
  unread: UnreadFrame;
  receipts: ReceiptsFrame;
  watch_presence: PresenceFrame;
  popup: PopupFrame;
  read: Done;
  unwatch_presence: Done;
  popup_events: Done;
  refresh: Done;
  ping: Done;
  react: Done;
  pin: Done;
  preferences: Done;
  assign: Done;
}

export type AnswerTo<Frame extends RequestFrame> = Answers[Frame["t"]];

export type LinkEvent =
  /** A session is live. `from` is the cursor that it was resumed with: who stands elsewhere has missed something. */
  | { readonly type: "up"; readonly bound: BoundFrame; readonly from: string | undefined }
  | { readonly type: "down"; readonly cause: TidingsError }
  /** Not the answers to requests. */
  | { readonly type: "frame"; readonly frame: ServerFrame }
  /** The cursor was refused: everything that was kept is of no use. */
  | { readonly type: "forget" }
  | { readonly type: "report"; readonly error: TidingsError };

/** A link whose app tells it of what the system lets it know. */
export interface WakeableLink extends Link {
  /** The network may be back, or the app came to the front. */
  wake(): void;
  /** Whether somebody looks at the app. */
  attend(attention: Attention): void;
}

export interface Link {
  readonly status: Observable<ConnectionStatus>;
  /** Whether a session is live: what is asked now is sent now. */
  readonly isUp: boolean;
  /** Rejects with the server's refusal, or with `connection_lost` or `timeout` when it is not known what became of it. */
  request<Frame extends RequestFrame>(frame: Frame): Promise<AnswerTo<Frame>>;
  /** Sends a frame that is not answered; nothing happens while there is no session. */
  tell(frame: NoticeFrame): void;
  listen(listener: (event: LinkEvent) => void): () => void;
  /** Connects: at first, after the end, or without waiting. */
  start(): void;
  close(): Promise<void>;
}
