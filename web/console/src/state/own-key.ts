// What the key of this tab may do, as the server says. The server decides all the same: what is hidden here, it would refuse.
import { Cell } from "../../../src/state/cell.js";
import type { ApiKey, KeyScope } from "./types.js";

/** Not set: the server has not said yet. */
export const ownKey = new Cell<ApiKey | undefined>(undefined);

/** Whether the key allows what needs this scope. */
export function may(scope: KeyScope): boolean {
  return ownKey.get()?.scopes.includes(scope) ?? true;
}
