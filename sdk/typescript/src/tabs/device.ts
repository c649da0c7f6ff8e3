// The name of this device: one for all tabs where they share a connection, else one for each tab.
import { randomId } from "../chat/ids.js";
import { webStorage } from "../platform.js";
import { pause, type Clock } from "../session/clock.js";
import type { Channel } from "./browser.js";

// Another tab of the same browser answers within a turn or two.
const TAKEN_ANSWER_MS = 100;

type DeviceMessage = { readonly is: "taken?" | "taken"; readonly device: string; readonly tab: string };

/** Kept in `localStorage`: the same for all tabs, and after the browser was closed. */
export function sharedDevice(name: string): string {
  return keptId("localStorage", name) ?? randomId();
}

/**
 * Kept in `sessionStorage`, which survives a reload. A duplicated tab starts with a copy, and two sessions of one device would replace
 * each other: so a tab asks the others first whether its id is taken. The returned function ends answering others.
 */
export async function ownDevice(
  name: string,
  openChannel: ((name: string) => Channel) | undefined,
  clock: Clock,
): Promise<{ readonly id: string; readonly end: () => void }> {
  const kept = keptId("sessionStorage", name);
  if (kept === undefined || !openChannel) return { id: kept ?? randomId(), end: () => undefined };
  const tab = randomId();
  let device = kept;
  let isTaken = false;
  const channel = openChannel(`${name}.device`);
  channel.onmessage = (event: { readonly data?: unknown }) => {
    const message = event.data as DeviceMessage;
    if (message.device !== device || message.tab === tab) return;
    if (message.is === "taken") isTaken = true;
    else channel.postMessage({ is: "taken", device, tab } satisfies DeviceMessage);
  };
  channel.postMessage({ is: "taken?", device, tab } satisfies DeviceMessage);
  await pause(clock, TAKEN_ANSWER_MS);
  if (isTaken) {
    device = randomId();
    keep("sessionStorage", name, device);
  }
  return { id: device, end: () => channel.close() };
}

type Place = "localStorage" | "sessionStorage";

function keptId(place: Place, name: string): string | undefined {
  try {
    const storage = webStorage(place);
    const kept = storage?.getItem(name);
    if (kept != null && kept !== "") return kept;
    const made = randomId();
    storage?.setItem(name, made);
    return storage ? made : undefined;
  } catch {
    return undefined; // a page that may store nothing
  }
}

function keep(place: Place, name: string, value: string): void {
  try {
    webStorage(place)?.setItem(name, value);
  } catch {
    // Kept as long as the page lives.
  }
}
