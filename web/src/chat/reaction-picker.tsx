import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { placeNear } from "../parts/place.js";

const KEYS = ["👍", "❤️", "😂", "🎉", "😮", "😢", "🙏", "👀"];
const NAMES = ["thumbs up", "heart", "laughing", "party", "astonished", "sad", "thanks", "looking"];

/** A row of reactions near a button. Escape, a click elsewhere or a scroll closes it. */
export function ReactionPicker({ near, onPick, onClose }: {
  readonly near: DOMRect;
  readonly onPick: (key: string) => void;
  readonly onClose: () => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const own = place.current;
    if (!own) return;
    placeNear(own, near, "above");
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
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      event.stopPropagation();
      onClose();
    } else if (step !== 0) buttons[(at + step + buttons.length) % buttons.length]?.focus();
  };
  return (
    <div ref={place} class="picker" role="group" aria-label="Reactions" onKeyDown={onKeyDown}>
      {KEYS.map((key, index) => (
        <button key={key} type="button" aria-label={NAMES[index]} onClick={() => onPick(key)}>{key}</button>
      ))}
    </div>
  );
}
