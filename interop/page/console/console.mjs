// The console in Chromium, as an operator uses it, on a server with people and messages.
import { SignJWT } from "jose";
import WebSocket from "ws";
import { launch, proxy } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";

const { TIDINGS_URL, TIDINGS_API_KEY, TIDINGS_TOKEN_KEY } = process.env;
export const { HELPER } = process.env;
const WAIT_MS_MAX = 60_000;

export const KEY = TIDINGS_API_KEY;
export const HOSTILE = "<img src=x onerror=alert(1)> \u202Efdp.exe";
export const browser = await launch();
/** What no page may do: fail, or want what its policy forbids. */
export const complaints = [];

// The server comes back at another port; the console's address stays.
let target = new URL(TIDINGS_URL).host;
export const network = await proxy(() => target);
export const origin = `http://${network.address}`;

export async function api(method, path, body) {
  const isText = typeof body === "string";
  const headers = { authorization: `Bearer ${KEY}`, "content-type": isText ? "text/plain" : "application/json" };
  const answer = await fetch(`http://${target}${path}`, { method, headers, ...(body !== undefined && { body: isText ? body : JSON.stringify(body) }) });
  const text = await answer.text();
  assert(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}

/** Asks the suite's helper: `take`, `refuse`, `stop`, `start`, or `look`. */
export async function helper(what) {
  const answer = await (await fetch(`${HELPER}/${what}`, { method: "POST" })).json();
  if (what === "start") target = answer.http;
  return answer;
}

/** Waits until something holds, and returns it. */
export async function until(what, holds) {
  const end = performance.now() + WAIT_MS_MAX;
  for (;;) {
    const found = await holds();
    if (found) return found;
    assert(performance.now() < end, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export function token(user) {
  const claims = new SignJWT({}).setProtectedHeader({ alg: "HS256" }).setSubject(user).setExpirationTime("1h");
  return claims.sign(new TextEncoder().encode(TIDINGS_TOKEN_KEY));
}

/** A user's device that takes pushes, and acknowledges them. */
export async function device(user, device_id) {
  const signed = await token(user);
  const socket = new WebSocket(`ws://${target}/v1/connect`);
  return new Promise((resolve, reject) => {
    socket.on("open", () => socket.send(JSON.stringify({ t: "bind", token: signed, device_id, device_kind: "ios", app_version: "4.2.1", push: true })));
    socket.on("error", reject);
    socket.on("message", (text) => {
      const frame = JSON.parse(text);
      if (frame.t === "bound") resolve(socket);
      if (frame.t === "push") socket.send(JSON.stringify({ t: "ack", pushes: [frame.push] }));
    });
  });
}

export async function people() {
  const users = [
    { id: "alice", name: "Alice Novak", attributes: { country: "DE" } }, { id: "bob", name: "Bob" }, { id: "carol", name: "Carol" }, { id: "mallory", name: HOSTILE },
  ];
  await api("PUT", "/v1/users", { users });
  await api("POST", "/v1/conversations", { id: "team", kind: "group", name: "Team", owner: "alice", members: users.map(({ id }) => id), receipts: "members" });
}

/** A tab with the console in it. */
export async function open({ isSignedIn = true, route = "", ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS_MAX);
  page.on("pageerror", (error) => complaints.push(error.stack));
  page.on("dialog", (dialog) => (complaints.push(`a dialog says ${dialog.message()}`), dialog.dismiss()));
  page.on("console", (message) => {
    // What a browser says of an answer that is no 2xx, and of a connection that broke, is no complaint.
    if (message.type() === "error" && !/ERR_|status of [45]/u.test(message.text())) complaints.push(message.text());
  });
  await page.goto(`${origin}/console`);
  if (isSignedIn) await signIn(page);
  if (route) await go(page, route);
  return page;
}

export async function signIn(page, key = KEY) {
  await page.getByLabel("Your name").fill("Ōta Jürgen");
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  if (key === KEY) await page.waitForSelector(".frame");
}

export async function go(page, route) {
  await page.evaluate((hash) => void (location.hash = hash), `#/${route}`);
  await page.waitForSelector(".page h1");
}

/** The card with this title. */
export const card = (page, title) => page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });

/** Answers the question before a change; its text, which names what happens. */
export async function answer(page, button) {
  const dialog = page.getByRole("dialog");
  const text = await dialog.innerText();
  await dialog.getByRole("button", { name: button, exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  return text;
}
