import type { ConversationView } from "@tidings/client";
import { useRef, useState } from "preact/hooks";
import { Avatar } from "../parts/avatar.js";
import { Icon, IconButton } from "../parts/icon.js";
import { Name } from "../parts/name.js";
import { useObservable } from "../state/cell.js";
import { usePeer, useSession, useTitle } from "../state/context.js";
import { listTimeText, previewOfEntry } from "../text.js";
import { focusComposer, hashOf } from "../address.js";
import { ConversationMenu } from "./preferences.js";

const UNREAD_SHOWN_MAX = 99;
const DRAFT_SHOWN_MAX = 160;

export function Line({ view, isOpen, fits }: {
  readonly view: ConversationView;
  readonly isOpen: boolean;
  readonly fits: (name: string) => boolean;
}) {
  const { tidings, drafts } = useSession();
  const title = useTitle(view.id, view);
  const peer = usePeer(view.id);
  const presence = useObservable(tidings.presence.of(peer ?? ""));
  const typing = useObservable(tidings.conversation(view.id).typingUsers);
  const draft = useObservable(drafts.of(view.id));
  const [menuNear, setMenuNear] = useState<DOMRect>();
  const place = useRef<HTMLLIElement>(null);
  if (!fits(title)) return null;

  const last = view.last_message ?? view.last_entry;
  const isQuiet = view.unread === 0 && view.marked_unread !== true;
  const count = view.unread > UNREAD_SHOWN_MAX || view.unread_capped ? `${UNREAD_SHOWN_MAX}+` : String(view.unread);
  return (
    // The key for context menus opens the menu, too.
    <li
      ref={place}
      class={`line-place ${menuNear ? "has-menu" : ""}`}
      onContextMenu={(event) => {
        event.preventDefault();
        setMenuNear(new DOMRect(event.clientX, event.clientY, 0, 0));
      }}
    >
      <a class={`line ${isOpen ? "is-open" : ""} ${isQuiet ? "" : "is-unread"}`} href={hashOf(view.id)} aria-current={isOpen ? "page" : undefined} onClick={() => isOpen && focusComposer()}>
        <Avatar id={peer ?? view.id} name={title} isOnline={presence?.online ?? false} />
        <span class="line-top">
          <bdi class="line-title">{title}</bdi>
          {presence?.online && <span class="sr-only">, online</span>}
          {view.pinned_at !== undefined && <span class="line-muted" role="img" aria-label="pinned"><Icon name="pin" /></span>}
          {view.muted && <span class="line-muted" role="img" aria-label="muted"><Icon name="bellOff" /></span>}
          {last && <time class="line-time" dateTime={new Date(view.last_at).toISOString()}>{listTimeText(view.last_at)}</time>}
        </span>
        <span class="line-bottom">
          <span class="line-preview">{preview()}</span>
          {view.mentions > 0 && <span class="badge is-mention" role="img" aria-label="you are mentioned">@</span>}
          {!isQuiet && (
            <span class={`badge ${view.muted ? "is-muted" : ""}`}>
              {view.unread > 0 ? count : "•"}
              <span class="sr-only"> unread</span>
            </span>
          )}
        </span>
      </a>
      <IconButton class="line-more" isSkipped icon="more" label={`Settings of ${title}`} onClick={(event) => setMenuNear((event.currentTarget as Element).getBoundingClientRect())} />
      {menuNear && (
        <ConversationMenu
          chat={tidings.conversation(view.id)}
          view={view}
          title={title}
          near={menuNear}
          onClose={() => {
            setMenuNear(undefined);
            place.current?.querySelector<HTMLElement>(".line")?.focus();
          }}
        />
      )}
    </li>
  );

  function preview() {
    if (typing.length > 0) return <em class="line-typing">typing…</em>;
    if (draft.trim() !== "" && !isOpen) return <Draft text={draft} />;
    if (!last) return "";
    const text = last.stream === "open" ? <em>writing…</em> : <bdi>{previewOfEntry(last)}</bdi>;
    if (last.kind !== "message" || last.from === undefined) return text;
    if (last.from === tidings.user) return <>You: {text}</>;
    return view.kind === "direct" ? text : <><Name user={last.from} />: {text}</>;
  }
}

/** A user with whom there is no conversation yet: the first message opens it. */
export function StartLine({ user, name, isOpen }: { readonly user: string; readonly name: string; readonly isOpen: boolean }) {
  const { tidings, drafts, assistant } = useSession();
  const { id } = tidings.direct(user);
  const draft = useObservable(drafts.of(id));
  return (
    <li>
      <a class={`line ${isOpen ? "is-open" : ""}`} href={hashOf(id)} aria-current={isOpen ? "page" : undefined} onClick={() => isOpen && focusComposer()}>
        <Avatar id={user} name={name} />
        <span class="line-top"><bdi class="line-title">{name}</bdi></span>
        <span class="line-bottom"><span class="line-preview">{draft.trim() !== "" && !isOpen ? <Draft text={draft} /> : user === assistant.id ? "Ask for an answer that grows" : "Say hello"}</span></span>
      </a>
    </li>
  );
}

function Draft({ text }: { readonly text: string }) {
  return <><em class="line-draft">Draft:</em> <bdi>{text.slice(0, DRAFT_SHOWN_MAX)}</bdi></>;
}
