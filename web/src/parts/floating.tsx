import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { placeNear } from "./place.js";

const KEYS = { rows: ["ArrowUp", "ArrowDown"], row: ["ArrowLeft", "ArrowRight"] } as const;

/** Buttons that float near what they belong to. Arrow keys move among them; Escape, Tab or a click elsewhere asks to close them. */
export function Floating({ near, prefers, lies, role, label, class: look, onClose, children }: {
  readonly near: DOMRect;
  readonly prefers: "above" | "below";
  /** The buttons lie in a row, or in rows of one. */
  readonly lies: "row" | "rows";
  readonly role: "menu" | "group";
  readonly label: string;
  readonly class: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const own = place.current;
    if (!own) return;
    placeNear(own, near, prefers);
    own.querySelector("button")?.focus();
  }, [near]);
  useEffect(() => {
    const onPointer = (event: PointerEvent): void => {
      if (!place.current?.contains(event.target as Node)) onClose();
    };
    addEventListener("pointerdown", onPointer);
    return () => removeEventListener("pointerdown", onPointer);
  }, [onClose]);

  const onKeyDown = (event: KeyboardEvent): void => {
    const buttons = [...(place.current?.querySelectorAll("button") ?? [])];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const [back, on] = KEYS[lies];
    const to = { [on]: at + 1, [back]: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      buttons.at(to % buttons.length)?.focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      onClose();
    }
    event.stopPropagation(); // the list and the history have arrow keys of their own
  };
  return <div ref={place} class={look} role={role} aria-label={label} onKeyDown={onKeyDown}>{children}</div>;
}
