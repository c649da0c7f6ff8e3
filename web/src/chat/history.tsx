// The history of a conversation: older pages as the reader goes back, and no more drawn than is near what is seen.
import type { Conversation, ConversationView, TimelineItem } from "@tidings/client";
import { textOf } from "@tidings/client";
import type { RefObject } from "preact";
import { useEffect, useImperativeHandle, useMemo, useRef, useState } from "preact/hooks";
import { IconButton } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { usePeer, useSession } from "../state/context.js";
import { tell } from "../state/toasts.js";
import type { MessageActions } from "./actions.js";
import { MessageRow, type Tick } from "./message-row.js";
import { firstNewOf, rowsOf } from "./rows.js";
import { useReadMark } from "./use-read-mark.js";
import { useWindow } from "./use-window.js";

const MARKED_MS = 1_600;
// A reader who goes back far goes on: pages grow.
const PAGE_FIRST = 50;
const PAGE_LATER = 200;
// A jump reads all that lies between.
const PAGE_JUMP = 500;
// From so many messages on a jump says that it takes a while.
const FAR = 2_000;
// Pages that bring nothing, one after the other, before a jump gives up.
const FRUITLESS_MAX = 3;
const SPOKEN_CHARACTERS_MAX = 300;

export interface HistoryHandle {
  readonly jump: (seq: number) => void;
  readonly toEnd: () => void;
}

export function History({ chat, view, title, actions, handle, onEscape }: {
  readonly chat: Conversation;
  readonly view: ConversationView | undefined;
  readonly title: string;
  readonly actions: MessageActions;
  readonly handle: RefObject<HistoryHandle | null>;
  readonly onEscape: () => void;
}) {
  const { tidings } = useSession();
  const { items, hasOlder, state, failure } = useObservable(chat.messages);
  const [focused, setFocused] = useState<string>();
  const [marked, setMarked] = useState<string>();
  const keys = useMemo(() => items.map(({ key }) => key), [items]);
  const list = useWindow(keys, () => {
    if (hasOlder && state === "ready") void chat.messages.loadOlder(items.length < PAGE_LATER ? PAGE_FIRST : PAGE_LATER).catch(() => undefined); // tried again at the next scroll
  });
  const readTo = useReadMark(chat, view, list.isAtEnd && state === "ready");
  const firstNew = useMemo(() => firstNewOf(items, tidings.user, readTo), [items, readTo, tidings.user]);
  const tickOf = useTicks(chat);
  const spoken = useNewest(chat.id);

  const jump = async (seq: number): Promise<void> => {
    const isSought = (item: TimelineItem): boolean => (item.is === "notice" || item.state === "sent") && item.seq === seq;
    if ((firstSeqOf(items) ?? 0) - seq > FAR) tell("Reading back to that message…");
    // The first item comes nearer with each page; when it is past the message, the message is there or nowhere.
    for (let fruitless = 0; fruitless < FRUITLESS_MAX; ) {
      const { items: now, hasOlder: isMore } = chat.messages.get();
      const first = firstSeqOf(now);
      if (!isMore || (first !== undefined && first <= seq)) break;
      await chat.messages.loadOlder(PAGE_JUMP);
      if (isGone.current) return;
      fruitless = firstSeqOf(chat.messages.get().items) === first ? fruitless + 1 : 0;
    }
    const found = chat.messages.get().items.find(isSought);
    if (!found) {
      tell("That message is not in the history that you can read.");
      return;
    }
    list.toRow(found.key);
    setFocused(found.key);
    setMarked(found.key);
    setTimeout(() => setMarked((key) => (key === found.key ? undefined : key)), MARKED_MS);
  };
  const isGone = useRef(false);
  useEffect(() => () => void (isGone.current = true), []);
  useImperativeHandle(handle, () => ({ jump: (seq) => void jump(seq).catch(() => tell("Older messages could not be read.")), toEnd: list.toEnd }));

  const onKeyDown = (event: KeyboardEvent): void => {
    const article = (event.target as Element).closest("article");
    if (event.key === "Escape") return onEscape();
    if (!article || event.target !== article) return;
    const step = event.key === "ArrowDown" || event.key === "PageDown" ? 1 : event.key === "ArrowUp" || event.key === "PageUp" ? -1 : 0;
    const at = keys.indexOf(article.dataset["key"] ?? "");
    if (event.key === "End") {
      event.preventDefault();
      list.toEnd();
      requestAnimationFrame(() => focusRow(keys.at(-1)));
      return;
    }
    if (step === 0 || event.altKey) return;
    event.preventDefault();
    let next = at + step;
    while (items[next]?.is === "notice") next += step;
    focusRow(keys[next]);
  };

  const box = list.box;
  const focusRow = (key: string | undefined): void => {
    if (key === undefined) return;
    setFocused(key);
    const row = [...(box.current?.querySelectorAll<HTMLElement>("article") ?? [])].find(({ dataset }) => dataset["key"] === key);
    row?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
  };

  const focusable = focused !== undefined && keys.includes(focused) ? focused : items.findLast(({ is }) => is === "message")?.key;
  return (
    <div class="history-place">
      <div
        ref={list.box}
        class="history"
        role="feed"
        tabIndex={items.length === 0 ? 0 : -1}
        aria-label={`Messages with ${title}`}
        aria-busy={state === "loading"}
        onScroll={list.onScroll}
        onKeyDown={onKeyDown}
        onFocusIn={(event) => {
          const key = (event.target as Element).closest("article")?.dataset["key"];
          if (key !== undefined) setFocused(key);
        }}
      >
        <div class="history-start">
          {hasOlder ? <p class="older">Loading older messages…</p> : state === "ready" && items.length > 0 && <p class="older">This is the beginning.</p>}
        </div>
        <div style={{ height: `${list.spaceBefore}px` }} />
        <div ref={list.rows}>
          {rowsOf(items, list.first, list.last, firstNew).map((row, index) => (
            <MessageRow
              key={row.key}
              row={row}
              isGroup={view?.kind !== "direct"}
              tick={tickOf(row.item)}
              isFocusable={row.key === focusable}
              isMarked={row.key === marked}
              position={list.first + index + 1}
              actions={actions}
            />
          ))}
        </div>
        <div style={{ height: `${list.spaceAfter}px` }} />
        {state === "loading" && items.length === 0 && <p class="empty">Loading…</p>}
        {state === "failed" && <p class="empty" role="alert">The messages cannot be read ({failure}).</p>}
        {state === "ready" && items.length === 0 && <p class="empty">No messages yet. Say hello to <bdi>{title}</bdi>.</p>}
      </div>
      {!list.isAtEnd && (
        <div class="to-end">
          <IconButton icon="down" label={view && view.unread > 0 ? `${view.unread} new messages below` : "To the newest"} onClick={list.toEnd} />
          {view !== undefined && view.unread > 0 && <span class="badge" aria-hidden="true">{view.unread}</span>}
        </div>
      )}
      <div class="sr-only" role="log" aria-live="polite">{spoken}</div>
    </div>
  );
}

function firstSeqOf(items: readonly TimelineItem[]): number | undefined {
  const first = items.find((item) => item.is === "notice" || item.state === "sent");
  return first && "seq" in first ? first.seq : undefined;
}

/** How far a message of this user has come, where the conversation shows it: to all others, or not. */
function useTicks(chat: Conversation): (item: { readonly is: string; readonly seq?: number }) => Tick {
  const { tidings } = useSession();
  const { marks } = useObservable(chat.receipts);
  const peer = usePeer(chat.id);
  const others = peer === undefined ? [...marks].filter(([user]) => user !== tidings.user) : [...marks].filter(([user]) => user === peer);
  const read = Math.min(...others.map(([, mark]) => mark.read));
  const delivered = Math.min(...others.map(([, mark]) => mark.delivered));
  return ({ seq }) => {
    if (seq === undefined || others.length === 0) return "sent";
    return read >= seq ? "read" : delivered >= seq ? "delivered" : "sent";
  };
}

/** The newest message that came, for a reader who does not see it. */
function useNewest(conversation: string): string {
  const { tidings, names } = useSession();
  const [text, setText] = useState("");
  useEffect(() => {
    const end = tidings.on("message", (message) => {
      if (message.conversation !== conversation || message.from === tidings.user) return;
      if (message.growing === "open") {
        setText(`${names.of(message.from ?? "").get()} writes…`);
        return;
      }
      const sender = message.from === undefined ? "" : `${names.of(message.from).get()}: `;
      setText(`${sender}${(textOf(message) ?? message.type).slice(0, SPOKEN_CHARACTERS_MAX)}`);
    });
    return end;
  }, [conversation, tidings, names]);
  return text;
}
