// Connecting and asking without a server: how often, in which order, and what is left behind.
import type { PopupDecision, PopupEvent, PopupQuestion, Tidings } from "@tidings/client";
import assert from "node:assert/strict";
import { afterEach, mock, test } from "node:test";
import { StrictMode } from "react";
import { TidingsProvider, useConnect, usePopups, useTidings } from "../src/index.js";
import { assertNoComplaints, Screen } from "./support/screen.js";

afterEach(assertNoComplaints);

/** Effects run some turns of the event loop after a rendering is seen; what has not happened then does not happen. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
}

/** What the hooks of this file use of a client. */
function fakeClient(user: string, log: string[], answers: { readonly show?: PopupDecision; readonly retryAfterMs?: number }[] = []): Tidings {
  const client: Pick<Tidings, "user" | "on" | "close" | "popups"> = {
    user,
    on: () => () => undefined,
    close: async () => void log.push(`close ${user}`),
    popups: {
      ask: async ({ placement }: PopupQuestion) => {
        log.push(`ask ${placement}`);
        return answers.shift() ?? {};
      },
      report: async (events: readonly PopupEvent[]) => void log.push(...events.map(({ type }) => type)),
    },
  };
  return client as Tidings;
}

function Who() {
  return <p>I am {useTidings().user}</p>;
}

function App({ user, open }: { readonly user: string | undefined; readonly open: (user: string) => Promise<Tidings> }) {
  const connected = useConnect(user, () => open(user ?? ""));
  if (connected.state === "failed") return <p>failed: {String(connected.error)}</p>;
  if (connected.state === "connecting") return <p>connecting</p>;
  return <TidingsProvider client={connected.client}><Who /></TidingsProvider>;
}

test("under StrictMode a client is opened once, and closed when the component goes", async () => {
  const log: string[] = [];
  const screen = new Screen();
  const open = async (user: string): Promise<Tidings> => {
    log.push(`open ${user}`);
    return fakeClient(user, log);
  };
  screen.render(<StrictMode><App user="ada" open={open} /></StrictMode>);
  await screen.sees("I am ada");
  screen.render(<StrictMode><App user="ada" open={open} /></StrictMode>);
  screen.unmount();
  await settle();
  assert.deepEqual(log, ["open ada", "close ada"]);
});

test("another user's client is opened when the one before has closed, also when it was still opening", async () => {
  const log: string[] = [];
  const screen = new Screen();
  let letAda = (): void => undefined;
  const adaMay = new Promise<void>((resolve) => (letAda = resolve));
  const open = async (user: string): Promise<Tidings> => {
    log.push(`open ${user}`);
    if (user === "ada") await adaMay;
    return fakeClient(user, log);
  };
  screen.render(<App user="ada" open={open} />);
  await screen.sees("connecting");
  await settle();
  screen.render(<App user="ben" open={open} />);
  await settle();
  assert.deepEqual(log, ["open ada"]);
  letAda();
  await screen.sees("I am ben");
  assert.deepEqual(log, ["open ada", "close ada", "open ben"]);
  screen.render(<App user={undefined} open={open} />);
  await screen.sees("connecting");
  await settle();
  assert.deepEqual(log.slice(3), ["close ben"]);
  screen.unmount();
});

test("a connect that fails says why, and a new key tries again", async () => {
  const screen = new Screen();
  const open = async (user: string): Promise<Tidings> => {
    if (user === "ada") throw new Error("no token");
    return fakeClient(user, []);
  };
  screen.render(<App user="ada" open={open} />);
  await screen.sees("failed: Error: no token");
  screen.render(<App user="ben" open={open} />);
  await screen.sees("I am ben");
  screen.unmount();
});

test("a popup that is due later is asked for again at its time, and not by a component that has gone", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const log: string[] = [];
    const show: PopupDecision = { decision: "d", popup: "p", variant: "a", content: { title: "Now" } };
    const client = fakeClient("ada", log, [{ retryAfterMs: 60_000 }, { show }]);
    function Popup() {
      return <p>{usePopups("home")?.content.title ?? "none"}</p>;
    }
    const screen = new Screen();
    screen.render(<StrictMode><TidingsProvider client={client}><Popup /></TidingsProvider></StrictMode>);
    await screen.sees("none");
    await settle();
    assert.deepEqual(log, ["ask home"]);
    mock.timers.tick(59_999);
    await settle();
    assert.deepEqual(log, ["ask home"]);
    mock.timers.tick(1);
    await screen.sees("Now");
    await settle();
    assert.deepEqual(new Set(log.slice(2)), new Set(["impression"]));
    screen.unmount();

    const later = fakeClient("ben", log, [{ retryAfterMs: 1_000 }]);
    const gone = new Screen();
    gone.render(<TidingsProvider client={later}><Popup /></TidingsProvider>);
    await gone.sees("none");
    await settle();
    gone.unmount();
    const before = log.length;
    mock.timers.tick(10_000);
    await settle();
    assert.equal(log.length, before);
  } finally {
    mock.timers.reset();
  }
});
