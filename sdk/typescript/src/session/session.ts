// Carries out what the state machine says: connections, timers, tokens.
import { CLIENT_CODES, TidingsError } from "../errors.js";
import { Cell, type Observable } from "../observable.js";
import type { ConnectionStatus } from "../tidings.js";
import type { Attention, ClientFrame, NoticeFrame, RequestFrame } from "../wire/client-frames.js";
import { parseServerFrame } from "../wire/parse.js";
import type { ServerFrame } from "../wire/server-frames.js";
import type { Clock } from "./clock.js";
import type { AnswerTo, LinkEvent, WakeableLink } from "./link.js";
import { initialState, step } from "./machine.js";
import { Requests } from "./requests.js";
import type { Effect, Identity, SessionEvent, SessionState, TimerName } from "./states.js";
import type { OpenedTransport, OpenTransport } from "./transport.js";

// The server takes messages of so many bytes and ends the session above (limit_exceeded).
const FRAME_BYTES_MAX = 192 * 1024;

export interface SessionOptions {
  readonly openTransport: OpenTransport;
  readonly token: () => Promise<string | null>;
  readonly identity: Identity;
  readonly cursor: string | undefined;
  readonly clock: Clock;
}

export class Session implements WakeableLink {
  readonly #options: SessionOptions;
  readonly #status = new Cell<ConnectionStatus>({ state: "connecting" });
  readonly #listeners = new Set<(event: LinkEvent) => void>();
  readonly #timers = new Map<TimerName, () => void>();
  readonly #requests: Requests;
  readonly #events: SessionEvent[] = [];
  #isHappening = false;
  #state: SessionState;
  #transport: OpenedTransport | undefined;
  #attention: Attention = "foreground";

  constructor(options: SessionOptions) {
    this.#options = options;
    this.#requests = new Requests(options.clock);
    this.#state = initialState(options.identity, options.cursor);
  }

  get status(): Observable<ConnectionStatus> {
    return this.#status;
  }

  get isUp(): boolean {
    return this.#state.phase.at === "live";
  }

  request<Frame extends RequestFrame>(frame: Frame): Promise<AnswerTo<Frame>> {
    if (!this.isUp) return Promise.reject(new TidingsError(CLIENT_CODES.connectionLost, "there is no connection", { retry: true }));
    const bytes = sizeOf(frame);
    if (bytes > FRAME_BYTES_MAX) {
      // Sent, it would end the session, and again after each reconnect.
      const message = `a frame holds at most ${FRAME_BYTES_MAX} bytes, this one has ${bytes}`;
      return Promise.reject(new TidingsError("limit_exceeded", message));
    }
    const { ref, answer } = this.#requests.open(frame.t);
    this.#send({ ...frame, ref });
    return answer as Promise<AnswerTo<Frame>>;
  }

  tell(frame: NoticeFrame): void {
    if (this.isUp && sizeOf(frame) <= FRAME_BYTES_MAX) this.#send(frame);
  }

  listen(listener: (event: LinkEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  start(): void {
    this.#happen({ type: "start" });
  }

  /** The network may be back, or a page came to the front: ends a wait, and notices a connection that has died meanwhile. */
  wake(): void {
    this.#happen({ type: "wake" });
    this.#happen({ type: "timer", name: "beat" });
  }

  attend(attention: Attention): void {
    if (attention === this.#attention) return;
    this.#attention = attention;
    this.tell({ t: "attention", state: attention });
  }

  close(): Promise<void> {
    this.#happen({ type: "stop" });
    return Promise.resolve();
  }

  // A listener may do what makes another event: that waits until all effects of this one are carried out.
  #happen(event: SessionEvent): void {
    this.#events.push(event);
    if (this.#isHappening) return;
    this.#isHappening = true;
    const { clock } = this.#options;
    try {
      for (let next = this.#events.shift(); next !== undefined; next = this.#events.shift()) {
        const [state, effects] = step(this.#state, next, { now: clock.now(), random: clock.random() });
        this.#state = state;
        for (const effect of effects) this.#carryOut(effect);
      }
    } finally {
      this.#isHappening = false;
    }
  }

  #carryOut(effect: Effect): void {
    switch (effect.do) {
      case "fetch_token":
        this.#fetchToken(effect.epoch);
        break;
      case "open":
        this.#open(effect.epoch);
        break;
      case "send":
        this.#send(effect.frame);
        break;
      case "drop":
        this.#transport?.drop(effect.code);
        this.#transport = undefined;
        break;
      case "set_timer":
        this.#setTimer(effect.name, effect.ms);
        break;
      case "clear_timer":
        this.#timers.get(effect.name)?.();
        this.#timers.delete(effect.name);
        break;
      case "status":
        this.#status.set(effect.status);
        break;
      case "up":
        // A session begins in the foreground.
        if (this.#attention !== "foreground") this.tell({ t: "attention", state: this.#attention });
        this.#tellAll({ type: "up", bound: effect.bound, from: effect.from });
        break;
      case "down":
        this.#requests.lose(effect.cause);
        this.#tellAll({ type: "down", cause: effect.cause });
        break;
      case "forget":
        this.#tellAll({ type: "forget" });
        break;
      case "deliver":
        this.#deliver(effect.frame);
        break;
      case "report":
        this.#tellAll({ type: "report", error: effect.error });
        break;
    }
  }

  #deliver(frame: ServerFrame): void {
    if (!this.#requests.take(frame)) this.#tellAll({ type: "frame", frame });
  }

  #tellAll(event: LinkEvent): void {
    for (const listener of [...this.#listeners]) listener(event);
  }

  #fetchToken(epoch: number): void {
    // A provider may throw instead of rejecting.
    Promise.resolve()
      .then(this.#options.token)
      .then(
        (token) => this.#happen({ type: "token", epoch, token }),
        (cause: unknown) => {
          const error = new TidingsError(CLIENT_CODES.tokenFailed, `the token provider failed: ${String(cause)}`, { retry: true, cause });
          this.#happen({ type: "token_failed", epoch, error });
        },
      );
  }

  #open(epoch: number): void {
    this.#transport = this.#options.openTransport({
      opened: () => this.#happen({ type: "opened", epoch }),
      text: (data) => {
        const parsed = parseServerFrame(data);
        if (parsed.is === "frame") this.#happen({ type: "frame", epoch, frame: parsed.frame });
        else if (parsed.is === "unknown") this.#happen({ type: "heard", epoch });
        else this.#happen({ type: "garbage", epoch, why: parsed.why });
      },
      closed: (code, reason) => this.#happen({ type: "closed", epoch, code, reason }),
    });
  }

  #send(frame: ClientFrame): void {
    this.#transport?.send(JSON.stringify(frame));
  }

  #setTimer(name: TimerName, ms: number): void {
    this.#timers.get(name)?.();
    const cancel = this.#options.clock.setTimer(ms, () => {
      this.#timers.delete(name);
      this.#happen({ type: "timer", name });
    });
    this.#timers.set(name, cancel);
  }
}

function sizeOf(frame: object): number {
  const text = JSON.stringify(frame);
  // Three bytes a character at most: short texts need no counting.
  return text.length * 3 <= FRAME_BYTES_MAX ? text.length : new TextEncoder().encode(text).length;
}
