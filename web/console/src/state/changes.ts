// What this tab has changed: the console's own log, beside the server's audit log.
import { Cell } from "../../../src/state/cell.js";

export interface Change {
  readonly at: number;
  readonly operator: string;
  readonly what: string;
  readonly request: string;
  readonly outcome: string;
  readonly isDone: boolean;
}

const PLACE = "tidings console changes";
const KEPT_MAX = 500;

export const changes = new Cell<readonly Change[]>(JSON.parse(sessionStorage.getItem(PLACE) ?? "[]") as readonly Change[]);

export function recordChange(change: Change): void {
  changes.set([change, ...changes.get()].slice(0, KEPT_MAX));
  sessionStorage.setItem(PLACE, JSON.stringify(changes.get()));
}
