// What can be done with a message.
import type { SentMessage } from "@tidings/client";

export interface MessageActions {
  readonly reply: (message: SentMessage) => void;
  readonly edit: (message: SentMessage) => void;
  readonly recall: (message: SentMessage) => void;
  readonly pin: (message: SentMessage) => void;
  readonly copy: (message: SentMessage) => void;
  /** Adds the reaction, or takes it back when it is this user's. */
  readonly react: (message: SentMessage, key: string) => void;
  readonly pick: (message: SentMessage, near: Element) => void;
  readonly jump: (seq: number) => void;
  readonly retry: (clientMsgId: string) => void;
  readonly discard: (clientMsgId: string) => void;
  readonly mayWrite: boolean;
  readonly mayPin: boolean;
  /** May take back others' messages. */
  readonly mayModerate: boolean;
}
