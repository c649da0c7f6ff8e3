// The two halves: the list, and the conversation that is open. On a phone one of them is seen.
import { useEffect, useState } from "preact/hooks";
import { opened } from "./address.js";
import { Chat } from "./chat/chat.js";
import { List } from "./list/list.js";
import { ConnectionBanner } from "./parts/connection-banner.js";
import { Icon } from "./parts/icon.js";
import { PopupSummary } from "./popups/popup-card.js";
import { useObservable } from "./state/cell.js";
import { useName, useSession } from "./state/context.js";
import { toast } from "./state/toasts.js";

export function Messenger() {
  const { tidings } = useSession();
  const [conversation, setConversation] = useState(opened);
  const { unread } = useObservable(tidings.conversations);
  const name = useName(tidings.user);
  const shown = useObservable(toast);

  useEffect(() => {
    const follow = (): void => setConversation(opened());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);

  useEffect(() => {
    document.title = `${unread > 0 ? `(${unread}) ` : ""}${name} · Tidings`;
  }, [unread, name]);

  const close = (): void => {
    location.hash = "";
  };
  return (
    <div class={conversation === undefined ? "messenger shows-list" : "messenger shows-chat"}>
      <ConnectionBanner />
      <List opened={conversation} />
      <PopupSummary />
      {conversation === undefined ? <NothingOpen /> : <Chat key={conversation} id={conversation} onClose={close} />}
      <div class="toasts" role="status">
        {shown && <p class="toast">{shown.text}</p>}
      </div>
    </div>
  );
}

function NothingOpen() {
  return (
    <main class="nothing-open">
      <Icon name="chat" />
      <h2>Choose a conversation</h2>
      <p>
        Or start one from the list. <kbd>Alt</kbd> + <kbd>↑</kbd> <kbd>↓</kbd> moves between conversations.
      </p>
    </main>
  );
}
