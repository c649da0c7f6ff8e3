import { Floating } from "../parts/floating.js";

const KEYS = ["👍", "❤️", "😂", "🎉", "😮", "😢", "🙏", "👀"];
const NAMES = ["thumbs up", "heart", "laughing", "party", "astonished", "sad", "thanks", "looking"];

/** A row of reactions near a button. */
export function ReactionPicker({ near, onPick, onClose }: {
  readonly near: DOMRect;
  readonly onPick: (key: string) => void;
  readonly onClose: () => void;
}) {
  return (
    <Floating near={near} prefers="above" lies="row" role="group" label="Reactions" class="picker" onClose={onClose}>
      {KEYS.map((key, index) => (
        <button key={key} type="button" aria-label={NAMES[index]} onClick={() => onPick(key)}>{key}</button>
      ))}
    </Floating>
  );
}
