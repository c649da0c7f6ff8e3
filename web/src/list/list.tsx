// The user's conversations, the latest first, and those who could be written to.
import { useEffect, useRef, useState } from "preact/hooks";
import { directPeer } from "@tidings/client";
import { Avatar } from "../parts/avatar.js";
import { Icon, IconButton } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { useName, useSession } from "../state/context.js";
import { isDark, switchTheme, theme } from "../state/theme.js";
import { telling } from "../state/toasts.js";
import { hashOf } from "../address.js";
import { Line, StartLine } from "./line.js";
import { NewGroup } from "./new-group.js";

export function List({ opened }: { readonly opened: string | undefined }) {
  const { tidings, people, switchUser } = useSession();
  const { items, hasMore, state } = useObservable(tidings.conversations);
  const [wanted, setWanted] = useState("");
  const [isMaking, setMaking] = useState(false);
  const me = useName(tidings.user);
  const place = useRef<HTMLUListElement>(null);
  useObservable(theme);

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
    const lines = [...(place.current?.querySelectorAll<HTMLElement>("a") ?? [])];
    const at = lines.indexOf(document.activeElement as HTMLElement);
    const next = lines[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (at === -1 || !next) return;
    event.preventDefault();
    next.focus();
  };

  const others = people.filter(({ id }) => id !== tidings.user && !peers.includes(id));
  const fits = (name: string): boolean => name.toLowerCase().includes(wanted.trim().toLowerCase());
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
      <div class="lines" onKeyDown={onKeyDown}>
        <ul ref={place}>
          {items.map((view) => <Line key={view.id} view={view} isOpen={view.id === opened} fits={fits} />)}
          {others.filter(({ name }) => fits(name)).map(({ id, name }) => (
            <StartLine key={id} user={id} name={name} isOpen={tidings.direct(id).id === opened} />
          ))}
        </ul>
        {state === "ready" && items.length + others.length === 0 && <p class="empty">No conversations yet.</p>}
        {hasMore && (
          <button type="button" class="more" onClick={() => void telling(tidings.conversations.loadMore())}>
            Older conversations
          </button>
        )}
      </div>
      {isMaking && <NewGroup onClose={() => setMaking(false)} />}
    </nav>
  );
}
