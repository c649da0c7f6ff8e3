// Popups of the real server, shown by a component.
import type { Tidings } from "@tidings/client";
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { StrictMode } from "react";
import { TidingsProvider, usePopups } from "../../src/index.js";
import { assertNoComplaints, Screen } from "../support/screen.js";
import { RealServer, type Server } from "../support/server.js";
import { open } from "../support/session.js";

let server: Server;
let client: Tidings;
let user: string;
const screen = new Screen();

before(async () => {
  server = await new RealServer().start();
  [user = ""] = await server.users("ada");
  client = await open(server, user);
});
afterEach(assertNoComplaints);
after(async () => {
  screen.unmount();
  await client.close();
  await server.remove();
});

const PRESSED: string[] = [];

function Popup({ placement }: { readonly placement?: string }) {
  const popup = usePopups(placement);
  if (!popup) return <p>no popup</p>;
  const { title, text, buttons } = popup.content;
  return (
    <dialog open>
      <h1>{title}</h1>
      <p>{text}</p>
      {buttons?.map((button) => (
        <button key={button.id} className={button.id} onClick={() => {
          PRESSED.push(button.label);
          popup.press(button);
        }}>{button.label}</button>
      ))}
      <button className="dismiss" onClick={popup.dismiss}>Close</button>
    </dialog>
  );
}

const popupOf = (content: object, more: object): object => ({ state: "live", variants: [{ id: "a", content }], ...more });

interface Hour {
  readonly shown: number;
  readonly impressions: number;
  readonly buttons: number;
  readonly dismissals: number;
}

/** Waits for what the server has counted of a popup: reports are on their way while it looks. */
async function counted(popup: string, expected: Partial<Hour>): Promise<void> {
  const end = Date.now() + 60_000;
  for (;;) {
    const { hours } = (await server.api("GET", `/v1/popups/${popup}/counts`)) as { readonly hours: readonly Hour[] };
    const sum = (name: keyof Hour): number => hours.reduce((total, hour) => total + hour[name], 0);
    const found = Object.fromEntries(Object.keys(expected).map((name) => [name, sum(name as keyof Hour)]));
    if (JSON.stringify(found) === JSON.stringify(expected)) return;
    assert.ok(Date.now() < end, `the server has counted ${JSON.stringify(hours)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("a popup of a placement is asked for once, seen once, and what is pressed is counted", async () => {
  const buttons = [{ id: "go", label: "See it", action: { type: "open", url: "app://sale" } }];
  await server.api("PUT", "/v1/popups/sale", popupOf({ title: "Sale", text: "Today", buttons }, { placements: ["home"] }));
  screen.render(<StrictMode><TidingsProvider client={client}><Popup placement="home" /></TidingsProvider></StrictMode>);
  await screen.sees("SaleTodaySee it");
  await screen.click("go");
  await screen.sees("no popup");
  assert.deepEqual(PRESSED, ["See it"]);
  await counted("sale", { shown: 1, impressions: 1, buttons: 1, dismissals: 0 });
});

test("a popup that the server triggers comes without a question, and can be dismissed", async () => {
  await server.api("PUT", "/v1/popups/news", popupOf({ title: "News" }, { placements: ["inbox"], trigger: { event: "news" } }));
  await server.api("POST", "/v1/popups/trigger", { user, placement: "inbox", event: { name: "news" } });
  await screen.sees("News");
  await screen.click("dismiss");
  await screen.sees("no popup");
  await counted("news", { shown: 1, impressions: 1, dismissals: 1 });
});
