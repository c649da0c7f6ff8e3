// Which transport carries the next connection: a WebSocket, and where none comes through, an event stream.
//
//   WebSocket ─fails before a server answers, or is not open in time→ event stream, in the same attempt
//   WebSocket ─opens twice, and nothing is heard→ event stream first, next time
//   event stream carried a session where no WebSocket came through → event stream first, for a while
import { webStorage } from "../platform.js";
import type { Clock } from "./clock.js";
import type { OpenedTransport, Transport, TransportHandlers } from "./transport.js";

// A network that swallows the handshake answers nothing.
const REACH_MS_MAX = 5_000;
// Networks change: after this time the next connection tries a WebSocket first again.
const PREFER_MS = 10 * 60_000;
// A proxy may let the handshake pass, and no frame.
const SILENT_MAX = 2;

/** Keeps until when event streams come first, in milliseconds since 1970, across page loads. */
export interface ChoiceMemory {
  read(): number;
  write(until: number): void;
}

export class TransportChoice {
  readonly #first: Transport;
  readonly #second: Transport | undefined;
  readonly #clock: Clock;
  readonly #memory: ChoiceMemory;
  #silent = 0;

  /** `second` is tried where `first` does not come through; without it there is no choice. */
  constructor(first: Transport, second: Transport | undefined, clock: Clock, memory: ChoiceMemory) {
    this.#first = first;
    this.#second = second;
    this.#clock = clock;
    this.#memory = memory;
  }

  open(handlers: TransportHandlers): OpenedTransport {
    const [first, second] = [this.#first, this.#second];
    if (!second) return first.open({ ...handlers, reached: () => undefined });
    const left = this.#memory.read() - this.#clock.now();
    const isSecondFirst = left > 0 && left <= PREFER_MS; // more: the clock has been set back
    return new Attempt(isSecondFirst ? [second, first] : [first, second], this.#clock, handlers, {
      // A session lives: the first transport works, or the second where the first has failed.
      heard: (by, after) => {
        if (by === first) this.#silent = 0;
        if (by === second && after === first) this.#prefer();
        if (by === first && after === second) this.#memory.write(0);
      },
      endedSilent: (by) => {
        if (by === first && ++this.#silent >= SILENT_MAX) this.#prefer();
      },
    });
  }

  #prefer(): void {
    this.#silent = 0;
    this.#memory.write(this.#clock.now() + PREFER_MS);
  }
}

interface Lessons {
  /** A transport has carried a frame of the server; `after` has failed before it in this attempt. */
  heard(by: Transport, after: Transport | undefined): void;
  /** A transport reached something, and no frame ever came. */
  endedSilent(by: Transport): void;
}

/** One attempt at a connection: the transports in turn, until one reaches a server. */
class Attempt implements OpenedTransport {
  readonly #transports: readonly Transport[];
  readonly #clock: Clock;
  readonly #handlers: TransportHandlers;
  readonly #lessons: Lessons;
  #current: OpenedTransport | undefined;
  #index = 0;
  #bind: string | undefined;
  #isReached = false;
  #isHeard = false;
  #isOver = false;
  #cancelTimer: () => void = () => undefined;

  constructor(transports: readonly Transport[], clock: Clock, handlers: TransportHandlers, lessons: Lessons) {
    this.#transports = transports;
    this.#clock = clock;
    this.#handlers = handlers;
    this.#lessons = lessons;
    this.#try();
  }

  send(text: string): void {
    this.#bind ??= text;
    this.#current?.send(text);
  }

  drop(code: number): void {
    this.#learnSilence();
    this.#isOver = true;
    this.#cancelTimer();
    this.#current?.drop(code);
  }

  #try(): void {
    const [index, transport] = [this.#index, this.#transports[this.#index]];
    if (!transport) return;
    const isCurrent = (): boolean => !this.#isOver && this.#index === index;
    if (index + 1 < this.#transports.length) {
      this.#cancelTimer = this.#clock.setTimer(REACH_MS_MAX, () => {
        if (isCurrent() && !this.#isReached) this.#next();
      });
    }
    this.#current = transport.open({
      reached: () => {
        if (!isCurrent()) return;
        this.#isReached = true;
        this.#cancelTimer();
      },
      opened: () => {
        if (!isCurrent()) return;
        // The session has sent its bind to the transport before this one.
        if (this.#bind === undefined) this.#handlers.opened();
        else this.#current?.send(this.#bind);
      },
      text: (data) => {
        if (!isCurrent()) return;
        if (!this.#isHeard) this.#lessons.heard(transport, this.#transports[index - 1]);
        this.#isHeard = true;
        this.#handlers.text(data);
      },
      closed: (code, reason) => {
        if (!isCurrent()) return;
        if (!this.#isReached && index + 1 < this.#transports.length) {
          this.#next();
          return;
        }
        this.#learnSilence();
        this.#isOver = true;
        this.#handlers.closed(code, reason);
      },
    });
  }

  #next(): void {
    this.#cancelTimer();
    const last = this.#current;
    this.#index += 1;
    last?.drop(1000);
    this.#try();
  }

  #learnSilence(): void {
    const transport = this.#transports[this.#index];
    if (!this.#isOver && this.#isReached && !this.#isHeard && transport) this.#lessons.endedSilent(transport);
  }
}

/** Keeps nothing beyond the page. */
export function forgetfulMemory(): ChoiceMemory {
  let until = 0;
  return { read: () => until, write: (time) => void (until = time) };
}

/** Keeps it in the browser's `localStorage`, where there is one that may be used. */
export function pageMemory(name: string): ChoiceMemory {
  const memory = forgetfulMemory();
  const key = `${name} transport`;
  return {
    read: () => {
      try {
        const stored = Number(webStorage("localStorage")?.getItem(key) ?? 0);
        return Math.max(memory.read(), Number.isFinite(stored) ? stored : 0);
      } catch {
        return memory.read(); // a page without storage
      }
    },
    write: (until) => {
      memory.write(until);
      try {
        webStorage("localStorage")?.setItem(key, String(until));
      } catch {
        // kept as long as the page lives
      }
    },
  };
}
