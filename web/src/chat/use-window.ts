// Which rows of a long list are drawn, and how the list stays where the reader is while rows come, go and grow.
//
// Everything follows from an anchor: the end, or one row and how far below the upper edge it stands. What is drawn is what is near the
// anchor; after each drawing the rows are measured and the anchor is put back in its place. Rows that are not drawn are an empty
// space of their measured height, or of an estimate.
import type { RefObject } from "preact";
import { useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { Heights } from "./heights.js";

// Drawn beyond the edges, so that a scroll rarely shows what is not drawn yet.
const BEYOND = 700;
const END_TOLERANCE = 40;
// Before the list has been measured.
const VIEW_ESTIMATE = 900;

type Anchor = { readonly is: "end" } | { readonly is: "row"; readonly key: string; readonly top: number };

export interface Span {
  /** The rows from `first` up to, and without, `last` are drawn. */
  readonly first: number;
  readonly last: number;
}

export interface ListWindow extends Span {
  readonly box: RefObject<HTMLDivElement | null>;
  /** Its children are the drawn rows and nothing else. */
  readonly rows: RefObject<HTMLDivElement | null>;
  readonly spaceBefore: number;
  readonly spaceAfter: number;
  readonly isAtEnd: boolean;
  readonly onScroll: () => void;
  readonly toEnd: () => void;
  /** Puts a row a third below the upper edge. */
  readonly toRow: (key: string) => void;
}

export function useWindow(keys: readonly string[], onNearStart: () => void): ListWindow {
  const box = useRef<HTMLDivElement | null>(null);
  const rows = useRef<HTMLDivElement | null>(null);
  const [heights] = useState(() => new Heights());
  const anchor = useRef<Anchor>({ is: "end" });
  const [isAtEnd, setAtEnd] = useState(true);
  const [, redraw] = useReducer((count: number) => count + 1, 0);

  heights.setKeys(keys);
  // Where a row was found last: it is there still, or has moved by as many rows as came before it.
  const found = useRef({ key: "", index: -1, count: 0 });
  const indexOf = (key: string): number => {
    const { key: known, index, count } = found.current;
    const guesses = known === key ? [index, index + keys.length - count] : [];
    const at = guesses.find((guess) => keys[guess] === key) ?? keys.indexOf(key);
    found.current = { key, index: at, count: keys.length };
    return at;
  };

  const spanNow = (): Span => {
    const view = box.current?.clientHeight ?? VIEW_ESTIMATE;
    const { current } = anchor;
    const at = current.is === "row" ? indexOf(current.key) : -1;
    if (current.is === "end" || at === -1) {
      let first = keys.length;
      for (let room = view + BEYOND; first > 0 && room > 0; ) room -= heights.of(--first);
      return { first, last: keys.length };
    }
    let first = at;
    for (let room = current.top + BEYOND; first > 0 && room > 0; ) room -= heights.of(--first);
    let last = at;
    for (let room = view - current.top + BEYOND; last < keys.length && room > 0; ) room -= heights.of(last++);
    return { first, last };
  };

  const drawn = spanNow();
  const isDrawn = (span: Span): boolean => span.first === drawn.first && span.last === drawn.last;

  const rowAt = (index: number): HTMLElement | undefined => rows.current?.children[index - drawn.first] as HTMLElement | undefined;

  const measure = (): void => {
    for (let index = drawn.first; index < drawn.last; index++) {
      const measured = rowAt(index)?.offsetHeight;
      if (measured !== undefined) heights.measured(index, measured);
    }
  };

  const putBack = (): void => {
    const list = box.current;
    if (!list) return;
    const { current } = anchor;
    const row = current.is === "row" ? rowAt(indexOf(current.key)) : undefined;
    if (current.is === "row" && row) {
      const by = row.offsetTop - list.scrollTop - current.top;
      if (Math.abs(by) >= 1) list.scrollTop += by;
    } else {
      anchor.current = { is: "end" };
      list.scrollTop = list.scrollHeight;
    }
  };

  /** Where the reader is now. */
  const look = (): void => {
    const list = box.current;
    if (!list) return;
    const isEnd = list.scrollHeight - list.scrollTop - list.clientHeight < END_TOLERANCE && drawn.last === keys.length;
    setAtEnd(isEnd);
    anchor.current = isEnd ? { is: "end" } : firstSeen(list);
  };

  const firstSeen = (list: HTMLElement): Anchor => {
    for (let index = drawn.first; index < drawn.last; index++) {
      const row = rowAt(index);
      const key = keys[index];
      if (row && key !== undefined && row.offsetTop + row.offsetHeight > list.scrollTop) {
        // The first drawn row may stand far below the edge when the reader jumped into the empty space above.
        if (index > drawn.first || row.offsetTop <= list.scrollTop) return { is: "row", key, top: row.offsetTop - list.scrollTop };
        break;
      }
    }
    let index = 0;
    let top = (rows.current?.offsetTop ?? 0) - heights.sum(0, drawn.first);
    while (index < keys.length - 1 && top + heights.of(index) <= list.scrollTop) top += heights.of(index++);
    return { is: "row", key: keys[index] ?? "", top: top - list.scrollTop };
  };

  useLayoutEffect(() => {
    measure();
    putBack();
    if (!isDrawn(spanNow())) redraw(undefined);
    if ((box.current?.scrollTop ?? Infinity) < BEYOND) onNearStart();
  });

  // The list's own size changes with the window, the keyboard of a phone and the height of the composer.
  const settle = useRef(() => undefined as void);
  settle.current = () => {
    measure();
    putBack();
    if (!isDrawn(spanNow())) redraw(undefined);
  };
  useLayoutEffect(() => {
    const list = box.current;
    if (!list) return undefined;
    let width = list.clientWidth;
    const observer = new ResizeObserver(() => {
      if (list.clientWidth !== width) heights.clear();
      width = list.clientWidth;
      settle.current();
    });
    observer.observe(list);
    return () => observer.disconnect();
  }, []);

  return {
    box,
    rows,
    ...drawn,
    spaceBefore: heights.sum(0, drawn.first),
    spaceAfter: heights.sum(drawn.last, keys.length),
    isAtEnd,
    onScroll: () => {
      look();
      if (!isDrawn(spanNow())) redraw(undefined);
      if ((box.current?.scrollTop ?? Infinity) < BEYOND) onNearStart();
    },
    toEnd: () => {
      anchor.current = { is: "end" };
      setAtEnd(true);
      redraw(undefined);
    },
    toRow: (key) => {
      anchor.current = { is: "row", key, top: Math.round((box.current?.clientHeight ?? VIEW_ESTIMATE) / 3) };
      setAtEnd(false);
      redraw(undefined);
    },
  };
}
