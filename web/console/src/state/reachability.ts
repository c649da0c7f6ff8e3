// Whether the node answers. One banner tells it for all pages; they keep what they show, and ask again when it is back.
import { Cell } from "../../../src/state/cell.js";

export type Reachability =
  | { readonly state: "up" }
  /** It answers, and cannot do its work: it drains, or its store is away. */
  | { readonly state: "notReady"; readonly why: string }
  | { readonly state: "away"; readonly since: number };

export const reachability = new Cell<Reachability>({ state: "up" });

export function noteAway(): void {
  if (reachability.get().state !== "away") reachability.set({ state: "away", since: Date.now() });
}

export function noteNotReady(why: string): void {
  const now = reachability.get();
  if (now.state !== "notReady" || now.why !== why) reachability.set({ state: "notReady", why });
}

export function noteUp(): void {
  if (reachability.get().state !== "up") reachability.set({ state: "up" });
}
