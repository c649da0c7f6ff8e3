// The fake server over event streams: each stream is a link, whose frames become events and whose client sends by requests.
import type { FakeLink } from "./fake-server.js";
import type { VirtualClock } from "./virtual-clock.js";

/** What happens to a request with frames: it arrives, it is lost on its way, or its answer is. */
export type PostFault = "pass" | "lost" | "answer-lost";

export interface StreamHost {
  readonly clock: VirtualClock;
  readonly isReachable: () => boolean;
  readonly openLink: () => FakeLink;
  readonly postFault: () => PostFault;
  readonly goneCode: () => GoneCode;
}

interface Stream {
  readonly link: FakeLink;
  taken: number;
}

/** What a request to a stream that has ended is answered with. */
export type GoneCode = "session_gone" | "replaced" | "kicked";

export function fakeFetch(host: StreamHost): typeof fetch {
  const streams = new Map<string, Stream>();
  return async (input, init) => {
    const url = new URL(String(input));
    await passes(host.clock, 1);
    if (!host.isReachable()) throw new TypeError("fetch failed");
    if (url.pathname === "/v1/stream") return open(host, streams, url.searchParams, init ?? {});
    const fault = host.postFault();
    if (fault === "lost") throw new TypeError("fetch failed");
    const status = post(streams.get(url.pathname.slice("/v1/stream/".length)), Number(url.searchParams.get("number")), init ?? {});
    if (fault === "answer-lost") throw new TypeError("fetch failed");
    return new Response(status === 410 ? JSON.stringify({ code: host.goneCode() }) : "{}", { status });
  };
}

function passes(clock: VirtualClock, ms: number): Promise<void> {
  return new Promise((resolve) => clock.setTimer(ms, resolve));
}

function credential(init: RequestInit): string {
  return new Headers(init.headers).get("authorization")?.slice("Bearer ".length) ?? "";
}

async function open(host: StreamHost, streams: Map<string, Stream>, query: URLSearchParams, init: RequestInit): Promise<Response> {
  const link = host.openLink();
  const id = String(streams.size + 1);
  streams.set(id, { link, taken: 0 });
  const text = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => {
      const tell = (event: string): void => controller.enqueue(text.encode(event));
      const end = (): void => {
        link.onmessage = null;
        controller.close();
      };
      link.onopen = () => tell(`event: open\ndata: {"stream":"${id}","secret":"secret of ${id}","keep_alive_ms":15000}\n\n`);
      link.onmessage = (event: { readonly data: string }) => tell(`data: ${event.data}\n\n`);
      link.onclose = ({ code, reason }: { readonly code: number; readonly reason: string }) => {
        if (code !== 1006) tell(`event: close\ndata: ${JSON.stringify({ code, reason })}\n\n`);
        end();
      };
      keepAlive(host.clock, link, () => tell(":\n\n"));
      init.signal?.addEventListener("abort", () => {
        if (link.readyState === 3) return;
        link.close();
        end();
      });
    },
  });
  link.send(JSON.stringify({ t: "bind", token: credential(init), ...Object.fromEntries(query) }));
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

function keepAlive(clock: VirtualClock, link: FakeLink, tell: () => void): void {
  clock.setTimer(15_000, () => {
    if (link.readyState !== 1) return;
    tell();
    keepAlive(clock, link, tell);
  });
}

function post(stream: Stream | undefined, number: number, init: RequestInit): number {
  if (!stream || stream.link.readyState !== 1) return 410;
  if (number > stream.taken + 1) return 409;
  if (number === stream.taken + 1) {
    stream.taken = number;
    for (const line of String(init.body).split("\n")) stream.link.send(line);
  }
  return 202;
}
