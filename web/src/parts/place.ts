const MARGIN = 8;

/** Puts what floats above or below what it belongs to, within the window. */
export function placeNear(own: HTMLElement, near: DOMRect, prefers: "above" | "below"): void {
  const { width, height } = own.getBoundingClientRect();
  const left = Math.max(MARGIN, Math.min(near.left + near.width / 2 - width / 2, innerWidth - width - MARGIN));
  const above = near.top - height - MARGIN;
  const below = near.bottom + MARGIN;
  const fitsBelow = below + height + MARGIN < innerHeight;
  const top = prefers === "above" ? (above > MARGIN ? above : below) : fitsBelow ? below : Math.max(MARGIN, above);
  own.style.left = `${left}px`;
  own.style.top = `${top}px`;
}
