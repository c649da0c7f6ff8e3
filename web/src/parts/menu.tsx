import { Floating } from "./floating.js";
import { Icon, type IconName } from "./icon.js";

export interface MenuItem {
  readonly icon: IconName;
  readonly label: string;
  readonly onPick: () => void;
  readonly isDangerous?: boolean;
}

/** A menu near a button. A pick leaves it to its owner to close it. */
export function Menu({ near, label, items, onClose }: {
  readonly near: DOMRect;
  readonly label: string;
  readonly items: readonly MenuItem[];
  readonly onClose: () => void;
}) {
  return (
    <Floating near={near} prefers="below" lies="rows" role="menu" label={label} class="menu" onClose={onClose}>
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
    </Floating>
  );
}
