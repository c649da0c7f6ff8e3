import type { Conversation, ConversationView } from "@tidings/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { ConversationMenu } from "../list/preferences.js";
import { Avatar } from "../parts/avatar.js";
import { IconButton } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { usePeer, useSession } from "../state/context.js";
import { telling } from "../state/toasts.js";
import { listTimeText } from "../text.js";
import { useMembers } from "./use-members.js";

export function ChatHeader({ chat, view, title, onClose, onPanel }: {
  readonly chat: Conversation;
  readonly view: ConversationView | undefined;
  readonly title: string;
  readonly onClose: () => void;
  readonly onPanel: (panel: "members" | "pins") => void;
}) {
  const peer = usePeer(chat.id);
  const { tidings } = useSession();
  const presence = useObservable(tidings.presence.of(peer ?? ""));
  const isMuted = view?.muted ?? false;
  const [menuNear, setMenuNear] = useState<DOMRect>();
  const head = useRef<HTMLElement>(null);
  const closeMenu = (): void => {
    setMenuNear(undefined);
    head.current?.querySelector<HTMLElement>(".more-button")?.focus();
  };
  return (
    <header class="chat-head" ref={head}>
      <IconButton icon="back" label="Back to the list" class="back" onClick={onClose} />
      <Avatar id={peer ?? chat.id} name={title} isOnline={presence?.online ?? false} />
      <div class="chat-title">
        <h2><bdi>{title}</bdi></h2>
        <p>{peer === undefined ? <GroupState chat={chat} view={view} /> : <PeerState chat={chat} user={peer} />}</p>
      </div>
      <IconButton class="wide-only" icon="pin" label="Pinned messages" onClick={() => onPanel("pins")} />
      {view !== undefined && (
        <IconButton
          class="wide-only"
          icon={isMuted ? "bellOff" : "bell"}
          label={isMuted ? "Unmute" : "Mute"}
          isPressed={isMuted}
          onClick={() => void telling(isMuted ? chat.unmute() : chat.mute())}
        />
      )}
      {peer === undefined && <IconButton icon="people" label="Members" onClick={() => onPanel("members")} />}
      {view !== undefined && (
        <IconButton class="more-button" icon="more" label="More" onClick={(event) => setMenuNear((event.currentTarget as Element).getBoundingClientRect())} />
      )}
      {view !== undefined && menuNear && (
        <ConversationMenu
          chat={chat}
          view={view}
          title={title}
          near={menuNear}
          more={[{ icon: "pin", label: "Pinned messages", onPick: () => onPanel("pins") }]}
          onClose={closeMenu}
        />
      )}
    </header>
  );
}

function PeerState({ chat, user }: { readonly chat: Conversation; readonly user: string }) {
  const { tidings, assistant } = useSession();
  const presence = useObservable(tidings.presence.of(user));
  const isTyping = useObservable(chat.typingUsers).length > 0;
  const hasConversation = useObservable(chat.view) !== undefined;
  const isConnected = useObservable(tidings.status).state === "online";
  // Only users with whom there is a conversation may be watched.
  useEffect(() => (hasConversation ? tidings.presence.watch([user]) : undefined), [hasConversation, user, tidings]);
  if (user === assistant.id) return <span>answers in this demo</span>;
  if (isTyping) return <span class="is-typing">typing…</span>;
  // What is not known is not said: before the answer, and without a connection.
  if (!presence || !isConnected) return <span>{"\u00a0"}</span>;
  if (presence.online) return <span class="is-online">online</span>;
  if (presence.last_seen !== undefined) return <span>last seen {listTimeText(presence.last_seen)}</span>;
  return <span>offline</span>;
}

function GroupState({ chat, view }: { readonly chat: Conversation; readonly view: ConversationView | undefined }) {
  const { tidings } = useSession();
  const members = useMembers(chat);
  const [online, setOnline] = useState(0);
  const isConnected = useObservable(tidings.status).state === "online";
  const others = members.filter(({ user }) => user !== tidings.user).map(({ user }) => user);
  const watched = others.join(" ");
  const isGroup = view?.kind === "group";
  useEffect(() => {
    if (others.length === 0 || !isGroup) return undefined;
    const count = (): void => setOnline(others.filter((user) => tidings.presence.of(user).get()?.online).length);
    const ends = [tidings.presence.watch(others, chat.id), ...others.map((user) => tidings.presence.of(user).subscribe(count))];
    count();
    return () => ends.forEach((end) => end());
  }, [watched, isGroup, chat, tidings]);
  if (view?.kind === "official") return <span>official account</span>;
  if (members.length === 0) return <span>group</span>;
  return <span>{members.length} {members.length === 1 ? "member" : "members"}{isConnected && online > 0 && <>, <span class="is-online">{online} online</span></>}</span>;
}
