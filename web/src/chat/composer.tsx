// Where a message is written. Enter sends, Shift and Enter begin a line; the arrow up in an empty composer edits the newest own message.
import type { Conversation, SentMessage } from "@tidings/client";
import { textOf } from "@tidings/client";
import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";
import { Icon, IconButton } from "../parts/icon.js";
import { Name } from "../parts/name.js";
import { useObservable } from "../state/cell.js";
import { usePeer, useSession } from "../state/context.js";
import { telling } from "../state/toasts.js";
import { mentionsIn, previewOf } from "../text.js";
import { MentionMenu, useMentionMenu } from "./mention-menu.js";

const HEIGHT_MAX = 200;

export type ComposerMode =
  | { readonly is: "new" }
  | { readonly is: "reply"; readonly message: SentMessage }
  | { readonly is: "edit"; readonly message: SentMessage };

export function Composer({ chat, title, mode, input, onMode, onSent }: {
  readonly chat: Conversation;
  readonly title: string;
  readonly mode: ComposerMode;
  readonly input: RefObject<HTMLTextAreaElement | null>;
  readonly onMode: (mode: ComposerMode) => void;
  readonly onSent: () => void;
}) {
  const { tidings, names, drafts, assistant } = useSession();
  const isForAssistant = usePeer(chat.id) === assistant.id;
  const draft = useObservable(drafts.of(chat.id));
  const [edited, setEdited] = useState<{ readonly in: ComposerMode; readonly text: string }>();
  const isEdit = mode.is === "edit";
  // An edit begins with the message's text, and has no part in the draft.
  const text = mode.is !== "edit" ? draft : edited?.in === mode ? edited.text : (textOf(mode.message) ?? "");
  const setText = (text: string): void => (mode.is === "edit" ? setEdited({ in: mode, text }) : drafts.set(chat.id, text));
  const menu = useMentionMenu(chat, input, text, setText);

  useLayoutEffect(() => {
    const field = input.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, HEIGHT_MAX)}px`;
  }, [text]);

  const send = (): void => {
    // The page may not have been drawn since.
    const body = { text: (isEdit ? text : drafts.of(chat.id).get()).trim() };
    if (body.text === "") return;
    if (mode.is === "edit") {
      const { seq, version } = mode.message;
      const mentions = mentionsAfterEdit(mode.message, body.text);
      if (body.text !== textOf(mode.message)) void telling(chat.edit(seq, body, { mentions, ifVersion: version }));
      onMode({ is: "new" });
      return;
    }
    const sent = chat.send(body, { mentions: mentionsIn(body.text, menu.names), ...(mode.is === "reply" && { replyTo: mode.message.seq }) });
    sent.then(
      ({ conversation, seq }) => isForAssistant && void telling(assistant.answer(conversation, body.text, seq)),
      () => undefined, // a refusal stands at the message
    );
    setText("");
    onMode({ is: "new" });
    onSent();
  };

  /** Whom the new text calls. A mention that the old text did not spell out stays: there was nothing of it to remove. */
  const mentionsAfterEdit = (message: SentMessage, text: string): readonly string[] => {
    const called = new Map([...menu.names, ...message.mentions.map((user) => [user, names.of(user).get()] as const)]);
    const spelt = mentionsIn(textOf(message) ?? "", called);
    return [...new Set([...message.mentions.filter((user) => !spelt.includes(user)), ...mentionsIn(text, called)])];
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    // While an input method composes, Enter is its own.
    if (event.isComposing || menu.onKeyDown(event)) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && mode.is !== "new") onMode({ is: "new" });
    else if (event.key === "ArrowUp" && text === "" && !event.altKey) {
      const own = chat.messages.get().items.findLast((item) => item.is === "message" && item.state === "sent" && item.from === tidings.user && !item.recalled);
      if (own?.is !== "message" || own.state !== "sent") return;
      event.preventDefault();
      onMode({ is: "edit", message: own });
    }
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
        input.current?.focus();
      }}
    >
      <MentionMenu menu={menu} />
      {mode.is !== "new" && (
        <div class="composer-about">
          <Icon name={isEdit ? "edit" : "reply"} />
          <p>
            <strong>{isEdit ? "Edit the message" : <>Answer to {mode.message.from === undefined ? "the message" : <Name user={mode.message.from} />}</>}</strong>
            <span dir="auto">{previewOf(mode.message.type, mode.message.body)}</span>
          </p>
          <IconButton icon="close" label="Cancel" onClick={() => onMode({ is: "new" })} />
        </div>
      )}
      <div class="composer-line">
        <textarea
          ref={input}
          rows={1}
          dir="auto"
          value={text}
          placeholder="Write a message"
          aria-label={`Message to ${title}`}
          aria-autocomplete="list"
          aria-controls={menu.isOpen ? menu.id : undefined}
          aria-activedescendant={menu.isOpen ? `${menu.id}-${menu.at}` : undefined}
          enterkeyhint="send"
          onInput={(event) => {
            setText(event.currentTarget.value);
            menu.look(event.currentTarget);
            if (!isEdit && event.currentTarget.value !== "") chat.typing();
          }}
          onClick={(event) => menu.look(event.currentTarget)}
          onBlur={() => menu.close()}
          onKeyDown={onKeyDown}
        />
        <button type="submit" class="send" aria-label={isEdit ? "Save" : "Send"} disabled={text.trim() === ""}>
          <Icon name={isEdit ? "check" : "send"} />
        </button>
      </div>
    </form>
  );
}
