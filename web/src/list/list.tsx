// The user's conversations, the latest first, and those who could be written to.
import { useEffect, useRef, useState } from "preact/hooks";
import { directPeer, type ConversationView } from "@tidings/client";
import { Avatar } from "../parts/avatar.js";
import { Icon, IconButton } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { useName, useSession } from "../state/context.js";
import { isDark, switchTheme, theme } from "../state/theme.js";
import { telling } from "../state/toasts.js";
import { hashOf } from "../address.js";
import { Line, StartLine } from "./line.js";
import { NewGroup } from "./new-group.js";
import { useArchived } from "./use-archived.js";
import { useSearch } from "./use-search.js";

type Shown = "all" | "unread" | "archived";

const FILTERS = [["all", "All"], ["unread", "Unread"], ["archived", "Archived"]] as const satisfies readonly (readonly [Shown, string])[];
const EMPTY: { readonly [which in Shown]: string } = {
  all: "No conversations yet.",
  unread: "Everything is read.",
  archived: "Nothing is archived. A line's menu puts it here.",
};

const isUnread = ({ unread, marked_unread }: ConversationView): boolean => unread > 0 || marked_unread === true;

export function List({ opened }: { readonly opened: string | undefined }) {
  const { tidings, people, assistant, switchUser } = useSession();
  const { items, hasMore, state, unread } = useObservable(tidings.conversations);
  const [wanted, setWanted] = useState("");
  const [isMaking, setMaking] = useState(false);
  const [shown, setShown] = useState<Shown>("all");
  const me = useName(tidings.user);
  const place = useRef<HTMLUListElement>(null);
  useObservable(theme);

  const archived = useArchived(items);
  const peers = items.flatMap(({ id }) => directPeer(id, tidings.user) ?? []);
  const watched = peers.join(" ");
  useEffect(() => (peers.length > 0 ? tidings.presence.watch(peers) : undefined), [watched, tidings]);

  useEffect(() => {
    const move = (event: KeyboardEvent): void => {
      if (!event.altKey || (event.key !== "ArrowDown" && event.key !== "ArrowUp")) return;
      event.preventDefault();
      const at = items.findIndex(({ id }) => id === opened);
      const next = items[at === -1 ? 0 : at + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) location.hash = hashOf(next.id);
    };
    addEventListener("keydown", move);
    return () => removeEventListener("keydown", move);
  }, [items, opened]);

  /** The arrow keys move between the lines. */
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.altKey || (event.key !== "ArrowDown" && event.key !== "ArrowUp")) return;
    const all = [...(place.current?.querySelectorAll<HTMLElement>("a") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const next = all[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (at === -1 || !next) return;
    event.preventDefault();
    next.focus();
  };

  const others = [...people, assistant].filter(({ id }) => id !== tidings.user && !peers.includes(id) && !archived.some((view) => view.id === tidings.direct(id).id));
  const lines = shown === "archived" ? archived : shown === "unread" ? items.filter(isUnread) : items;
  const fits = (name: string): boolean => name.toLowerCase().includes(wanted.trim().toLowerCase());
  const found = useSearch(wanted, hasMore && shown === "all").filter(({ id }) => !items.some((view) => view.id === id));
  return (
    <nav class="list" aria-label="Conversations">
      <header class="list-head">
        <Avatar id={tidings.user} name={me} />
        <h1><bdi>{me}</bdi></h1>
        <IconButton icon="plus" label="New group" onClick={() => setMaking(true)} />
        <IconButton icon={isDark() ? "sun" : "moon"} label={isDark() ? "Light colours" : "Dark colours"} onClick={switchTheme} />
        <IconButton icon="user" label="Be somebody else in this window" onClick={switchUser} />
      </header>
      <label class="search">
        <Icon name="search" />
        <input
          type="search"
          placeholder="Search conversations"
          aria-label="Search conversations"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      </label>
      <div class="filters" role="group" aria-label="Which conversations">
        {FILTERS.map(([which, label]) => (
          <button key={which} type="button" class="filter" aria-pressed={shown === which} onClick={() => setShown(which)}>{label}</button>
        ))}
      </div>
      {shown === "unread" && (unread > 0 || lines.length > 0) && (
        <button type="button" class="link read-all" onClick={() => void telling(tidings.conversations.readAll())}>Mark all as read</button>
      )}
      <div class="lines" onKeyDown={onKeyDown}>
        <ul ref={place}>
          {lines.map((view) => <Line key={view.id} view={view} isOpen={view.id === opened} fits={fits} />)}
          {found.map((view) => <Line key={view.id} view={view} isOpen={view.id === opened} fits={() => true} />)}
          {shown === "all" && others.filter(({ name }) => fits(name)).map(({ id, name }) => (
            <StartLine key={id} user={id} name={name} isOpen={tidings.direct(id).id === opened} />
          ))}
        </ul>
        {state === "ready" && lines.length === 0 && (shown !== "all" || others.length === 0) && <p class="empty">{EMPTY[shown]}</p>}
        {hasMore && shown !== "archived" && (
          <button type="button" class="more" onClick={() => void telling(tidings.conversations.loadMore())}>
            Older conversations
          </button>
        )}
      </div>
      {isMaking && <NewGroup onClose={() => setMaking(false)} />}
    </nav>
  );
}
