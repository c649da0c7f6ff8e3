// A conversation that is open.
import type { SentMessage } from "@tidings/client";
import { textOf } from "@tidings/client";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Dialog } from "../parts/dialog.js";
import { useObservable } from "../state/cell.js";
import { useSession, useTitle } from "../state/context.js";
import { tell, telling } from "../state/toasts.js";
import type { MessageActions } from "./actions.js";
import { ChatHeader } from "./chat-header.js";
import { Composer, type ComposerMode } from "./composer.js";
import { History, type HistoryHandle } from "./history.js";
import { Members } from "./members.js";
import { Pins } from "./pins.js";
import { ReactionPicker } from "./reaction-picker.js";
import { TypingLine } from "./typing-line.js";

interface Picking {
  readonly message: SentMessage;
  readonly near: DOMRect;
  readonly button: Element;
}

export function Chat({ id, onClose }: { readonly id: string; readonly onClose: () => void }) {
  const { tidings } = useSession();
  const chat = tidings.conversation(id);
  const view = useObservable(chat.view);
  const title = useTitle(id, view);
  const [mode, setMode] = useState<ComposerMode>({ is: "new" });
  const [picking, setPicking] = useState<Picking>();
  const [recalling, setRecalling] = useState<SentMessage>();
  const [panel, setPanel] = useState<"members" | "pins">();
  const history = useRef<HistoryHandle | null>(null);
  const input = useRef<HTMLTextAreaElement | null>(null);

  const role = view?.role ?? "member";
  const isDirect = view === undefined || view.kind === "direct";
  const mayWrite = view?.kind !== "official" || role !== "member";
  const mayPin = isDirect || role !== "member";
  const mayModerate = !isDirect && role !== "member";

  const actions: MessageActions = useMemo(() => ({
    reply: (message) => {
      setMode({ is: "reply", message });
      input.current?.focus();
    },
    edit: (message) => {
      setMode({ is: "edit", message });
      input.current?.focus();
    },
    recall: setRecalling,
    pin: ({ seq, pinned }) => void telling(pinned ? chat.unpin(seq) : chat.pin(seq)),
    copy: (message) => void telling(navigator.clipboard.writeText(textOf(message) ?? JSON.stringify(message.body)).then(() => tell("Copied."))),
    react: ({ seq, reactions }, key) => {
      const isMine = reactions.find((reaction) => reaction.key === key)?.users.includes(tidings.user) ?? false;
      void telling(isMine ? chat.unreact(seq, key) : chat.react(seq, key));
    },
    pick: (message, button) => setPicking({ message, near: button.getBoundingClientRect(), button }),
    jump: (seq) => history.current?.jump(seq),
    retry: (clientMsgId) => chat.retry(clientMsgId),
    discard: (clientMsgId) => void chat.discard(clientMsgId),
    mayWrite,
    mayPin,
    mayModerate,
  }), [chat, mayWrite, mayPin, mayModerate]);

  // Who opens it has looked at it.
  const isMarked = view?.marked_unread === true;
  useEffect(() => {
    if (isMarked) chat.setPreferences({ marked_unread: false }).catch(() => undefined);
  }, [id]);

  // The conversation is ready to be written to, except where a keyboard would cover it.
  useEffect(() => {
    if (matchMedia("(min-width: 721px)").matches) input.current?.focus();
  }, [id]);

  const closePicker = (): void => {
    // The button is hidden by now: it is seen while its message has the focus.
    picking?.button.closest<HTMLElement>("article")?.focus({ preventScroll: true });
    setPicking(undefined);
  };
  return (
    <main class="chat" aria-label={`Conversation with ${title}`}>
      <ChatHeader chat={chat} view={view} title={title} onClose={onClose} onPanel={setPanel} />
      <History chat={chat} view={view} title={title} actions={actions} handle={history} onEscape={() => input.current?.focus()} />
      <TypingLine chat={chat} />
      {mayWrite ? (
        <Composer chat={chat} title={title} mode={mode} input={input} onMode={setMode} onSent={() => history.current?.toEnd()} />
      ) : (
        <p class="read-only">Only the owner and the admins of this account write here.</p>
      )}
      {picking && (
        <ReactionPicker
          near={picking.near}
          onClose={closePicker}
          onPick={(key) => {
            actions.react(picking.message, key);
            closePicker();
          }}
        />
      )}
      {panel === "members" && <Members chat={chat} mayChange={mayModerate} onClose={() => setPanel(undefined)} />}
      {panel === "pins" && <Pins chat={chat} actions={actions} onClose={() => setPanel(undefined)} />}
      {recalling && (
        <Dialog title="Take the message back?" onClose={() => setRecalling(undefined)}>
          <p class="dialog-text">Its text is removed for everybody. That somebody wrote here stays to be seen.</p>
          <div class="dialog-buttons">
            <button type="button" class="plain" onClick={() => setRecalling(undefined)}>Keep it</button>
            <button
              type="button"
              class="danger"
              onClick={() => {
                setRecalling(undefined);
                void telling(chat.recall(recalling.seq));
              }}
            >
              Take it back
            </button>
          </div>
        </Dialog>
      )}
    </main>
  );
}
