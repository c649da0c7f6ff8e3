import type { Clock } from "../session/clock.js";
import type { Link } from "../session/link.js";
import type { Asker } from "./asker.js";
import type { Emitter } from "./emitter.js";

/** What every part of the chat side stands on. */
export interface Core {
  readonly me: string;
  readonly link: Link;
  readonly asker: Asker;
  readonly clock: Clock;
  readonly emitter: Emitter;
}
