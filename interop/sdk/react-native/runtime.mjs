// A runtime that has what React Native 0.88 has and what its releases since have all had: a `window` without a document, a `fetch` whose
// answers are whole, and neither `crypto` nor `TextDecoder`, `structuredClone`, `atob`, `location` or storage.
import { createContext, runInContext } from "node:vm";
import WebSocket from "ws";

/** As whatwg-fetch answers: when all has come, and without a stream. */
class WholeResponse {
  constructor({ status, ok, headers }, text) {
    Object.assign(this, { status, ok, headers, text: async () => text, json: async () => JSON.parse(text) });
  }
}

export class Runtime {
  asked = [];
  reported = [];
  /** How many of the next WebSockets find nobody. */
  unreachable = 0;

  constructor() {
    const runtime = this;
    class Socket extends WebSocket {
      constructor(url) {
        super(runtime.unreachable-- > 0 ? "ws://127.0.0.1:1" : url);
      }
    }
    const has = {
      console, setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, clearImmediate, queueMicrotask, performance,
      requestAnimationFrame: (then) => setTimeout(then, 16), cancelAnimationFrame: clearTimeout, alert: () => undefined,
      TextEncoder, AbortController, AbortSignal, Headers, FormData, Blob, Event, EventTarget,
      Element: class {}, HTMLElement: class {}, Document: class {}, XMLHttpRequest: class {},
      navigator: { product: "ReactNative" },
      process: { env: { NODE_ENV: "production" } },
      Response: WholeResponse,
      WebSocket: Socket,
      fetch: async (url, options) => {
        runtime.asked.push(url);
        const answer = await fetch(url, options);
        return new WholeResponse(answer, await answer.text());
      },
      reportError: (error) => runtime.reported.push(error),
    };
    this.context = createContext(has);
    runInContext("globalThis.window = globalThis.self = globalThis.global = globalThis", this.context);
  }

  run(program) {
    return runInContext(program, this.context);
  }
}
