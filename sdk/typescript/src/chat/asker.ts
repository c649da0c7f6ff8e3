import { CLIENT_CODES, TidingsError } from "../errors.js";
import { pause, type Clock } from "../session/clock.js";
import type { AnswerTo, Link } from "../session/link.js";
import type { RequestFrame } from "../wire/client-frames.js";

const ATTEMPTS_MAX = 6;
const RETRY_MS = 500;

/** Asks what may be asked twice: waits for a connection, and asks again when one breaks or the server asks for patience. */
export class Asker {
  readonly #link: Link;
  readonly #clock: Clock;

  constructor(link: Link, clock: Clock) {
    this.#link = link;
    this.#clock = clock;
  }

  async ask<Frame extends RequestFrame>(frame: Frame): Promise<AnswerTo<Frame>> {
    for (let refusals = 0; ; ) {
      await this.untilUp();
      try {
        return await this.#link.request(frame);
      } catch (error) {
        if (!(error instanceof TidingsError) || !error.retry) throw error;
        // A lost connection is no refusal: it is asked again as often as connections break.
        if (error.code === CLIENT_CODES.connectionLost) {
          if (this.#link.isUp) await pause(this.#clock, RETRY_MS); // it will know soon
          continue;
        }
        if (++refusals >= ATTEMPTS_MAX) throw error;
        await pause(this.#clock, error.retryAfterMs ?? RETRY_MS * 2 ** refusals);
      }
    }
  }

  /** Resolves when a session is live; rejects when the client has ended. */
  untilUp(): Promise<void> {
    if (this.#link.isUp) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const look = (): void => {
        const status = this.#link.status.get();
        if (!this.#link.isUp && status.state !== "ended") return;
        endStatus();
        endEvents();
        if (status.state === "ended") reject(status.error);
        else resolve();
      };
      const endStatus = this.#link.status.subscribe(look);
      const endEvents = this.#link.listen((event) => {
        if (event.type === "up") look();
      });
      look();
    });
  }
}
