// The names that complete an `@` in the composer.
import type { Conversation } from "@tidings/client";
import type { RefObject } from "preact";
import { useId, useState } from "preact/hooks";
import { Avatar } from "../parts/avatar.js";
import { Icon } from "../parts/icon.js";
import { usePeer, useSession } from "../state/context.js";
import { EVERYBODY } from "../state/names.js";
import { useMayMentionAll } from "./use-may-mention-all.js";
import { useMembers } from "./use-members.js";

const SHOWN_MAX = 6;
// An @ at the beginning of a word, and what follows it up to the caret.
const BEGUN = /(?:^|\s)@([^\s@]{0,40})$/u;

export interface MentionMenuState {
  readonly id: string;
  readonly isOpen: boolean;
  readonly at: number;
  readonly choices: readonly { readonly id: string; readonly name: string }[];
  /** The names of all who can be mentioned, by user. */
  readonly names: ReadonlyMap<string, string>;
  readonly look: (field: HTMLTextAreaElement) => void;
  readonly close: () => void;
  readonly choose: (index: number) => void;
  /** Answers whether the key was for the menu. */
  readonly onKeyDown: (event: KeyboardEvent) => boolean;
}

export function useMentionMenu(
  chat: Conversation,
  input: RefObject<HTMLTextAreaElement | null>,
  text: string,
  onText: (text: string) => void,
): MentionMenuState {
  const { tidings, names } = useSession();
  const id = useId();
  const members = useMembers(chat);
  const peer = usePeer(chat.id);
  const [begun, setBegun] = useState<string>();
  const [at, setAt] = useState(0);

  const users = (peer === undefined ? members.map(({ user }) => user) : [peer]).filter((user) => user !== tidings.user);
  const all = users.map((user) => ({ id: user, name: names.of(user).get() }));
  const everybody = useMayMentionAll(chat) ? [{ id: EVERYBODY, name: names.of(EVERYBODY).get() }] : [];
  const fits = (name: string): boolean => name.toLowerCase().startsWith(begun?.toLowerCase() ?? "");
  const found = (some: typeof all, max: number): typeof all => (begun === undefined ? [] : some.filter((one) => fits(one.name) || fits(one.id)).slice(0, max));
  // Behind the users, so that a key pressed in haste calls one of them and not everybody.
  const choices = [...found(all, SHOWN_MAX - everybody.length), ...found(everybody, 1)];
  const isOpen = choices.length > 0;

  const choose = (index: number): void => {
    const field = input.current;
    const chosen = choices[index];
    if (!field || !chosen || begun === undefined) return;
    const caret = field.selectionStart;
    const start = caret - begun.length;
    const end = `${chosen.name} `;
    onText(text.slice(0, start) + end + text.slice(caret));
    setBegun(undefined);
    // After the text is drawn the caret would stand at its end.
    setTimeout(() => field.setSelectionRange(start + end.length, start + end.length));
  };
  return {
    id,
    isOpen,
    at: Math.min(at, Math.max(0, choices.length - 1)),
    choices,
    names: new Map([...all, ...everybody].map((one) => [one.id, one.name])),
    look: (field) => {
      setBegun(BEGUN.exec(field.value.slice(0, field.selectionStart))?.[1]);
      setAt(0);
    },
    close: () => setBegun(undefined),
    choose,
    onKeyDown: (event) => {
      if (!isOpen) return false;
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (step !== 0) setAt((at + step + choices.length) % choices.length);
      else if (event.key === "Enter" || event.key === "Tab") choose(at);
      else if (event.key === "Escape") setBegun(undefined);
      else return false;
      event.preventDefault();
      return true;
    },
  };
}

export function MentionMenu({ menu }: { readonly menu: MentionMenuState }) {
  if (!menu.isOpen) return null;
  return (
    <ul class="mention-menu" id={menu.id} role="listbox" aria-label="Mention">
      {menu.choices.map(({ id, name }, index) => (
        <li
          key={id}
          id={`${menu.id}-${index}`}
          role="option"
          aria-selected={index === menu.at}
          // Before the composer loses the focus.
          onPointerDown={(event) => {
            event.preventDefault();
            menu.choose(index);
          }}
        >
          {id === EVERYBODY ? <span class="avatar tone-7"><Icon name="people" /></span> : <Avatar id={id} name={name} />}
          <bdi>{name}</bdi>
          {id === EVERYBODY && <span class="mention-about">everybody in this conversation</span>}
        </li>
      ))}
    </ul>
  );
}
