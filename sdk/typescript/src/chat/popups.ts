import type { Popups } from "../tidings.js";
import type { PopupDecision, PopupEvent, PopupQuestion } from "../wire/popups.js";
import type { Core } from "./core.js";
import { randomId } from "./ids.js";

const EVENTS_MAX = 1_000;

/** Questions and reports about popups. */
export class PopupDesk implements Popups {
  readonly #core: Core;
  /** The visit, for caps that count by session: it outlives the connection, by which the server would count. */
  readonly #visit = randomId();

  constructor(core: Core) {
    this.#core = core;
  }

  /** Asked once: an answer that the network loses was an exposure, so asking again would be another question. */
  async ask(question: PopupQuestion): Promise<{ readonly show?: PopupDecision; readonly retryAfterMs?: number }> {
    await this.#core.asker.untilUp();
    const { show, retry_after_ms } = await this.#core.link.request({ t: "popup", question: { session: this.#visit, ...question } });
    return { ...(show != null && { show }), ...(retry_after_ms != null && { retryAfterMs: retry_after_ms }) };
  }

  /** May be told twice: an event's id is counted once. */
  async report(events: readonly PopupEvent[]): Promise<void> {
    for (let start = 0; start < events.length; start += EVENTS_MAX) {
      await this.#core.asker.ask({ t: "popup_events", events: events.slice(start, start + EVENTS_MAX) });
    }
  }
}
