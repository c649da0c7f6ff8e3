import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon, type IconName } from "./icon.js";
import { placeNear } from "./place.js";

export interface MenuItem {
  readonly icon: IconName;
  readonly label: string;
  readonly onPick: () => void;
  readonly isDangerous?: boolean;
}

/** A menu near a button. Arrow keys move in it; Escape, Tab or a click elsewhere asks to close it, a pick leaves that to its owner. */
export function Menu({ near, label, items, onClose }: {
  readonly near: DOMRect;
  readonly label: string;
  readonly items: readonly MenuItem[];
  readonly onClose: () => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const own = place.current;
    if (!own) return;
    placeNear(own, near, "below");
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
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      buttons.at(to % buttons.length)?.focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      onClose();
    }
    event.stopPropagation(); // the list and the history have arrow keys of their own
  };
  return (
    <div ref={place} class="menu" role="menu" aria-label={label} onKeyDown={onKeyDown}>
      {items.map(({ icon, label: text, onPick, isDangerous }) => (
        <button
          key={text}
          type="button"
          role="menuitem"
          tabIndex={-1}
          class={isDangerous ? "is-dangerous" : ""}
          onClick={onPick}
        >
          <Icon name={icon} />
          {text}
        </button>
      ))}
    </div>
  );
}
