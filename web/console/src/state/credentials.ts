// Who uses the console, and with which key. Both live in this tab's session storage alone: they go with the tab.
import { Cell } from "../../../src/state/cell.js";
import { ownKey } from "./own-key.js";

export interface Credentials {
  readonly key: string;
  /** The operator's name, for the server's audit log. */
  readonly operator: string;
}

const PLACE = "tidings console";

function stored(): Credentials | undefined {
  const text = sessionStorage.getItem(PLACE);
  return text === null ? undefined : (JSON.parse(text) as Credentials);
}

export const credentials = new Cell<Credentials | undefined>(stored());

/** Why the key was asked for again. */
export const signInNote = new Cell<string | undefined>(undefined);

export function signIn(given: Credentials): void {
  sessionStorage.setItem(PLACE, JSON.stringify(given));
  signInNote.set(undefined);
  credentials.set(given);
}

export function signOut(note?: string): void {
  sessionStorage.removeItem(PLACE);
  signInNote.set(note);
  ownKey.set(undefined);
  credentials.set(undefined);
}
