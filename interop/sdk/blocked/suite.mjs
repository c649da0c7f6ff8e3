// The TypeScript client in Chromium where no WebSocket comes through: it finds the event stream by itself.
import { launch, proxy, version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const { TIDINGS_URL, TIDINGS_API_KEY, NGINX, SUITE, TOKEN_ADA, TOKEN_BEN } = process.env;
const [ada, ben] = ["ada", "ben"].map((who) => `${SUITE}-${who}`);
const tokens = { [ada]: TOKEN_ADA, [ben]: TOKEN_BEN };
// Each user's way to nginx can be cut.
const ways = { [ada]: await proxy(() => NGINX), [ben]: await proxy(() => NGINX) };
const browser = await launch();
const contexts = { [ada]: await browser.newContext(), [ben]: await browser.newContext() };
const sockets = { [ada]: 0, [ben]: 0 };
const pages = {};
const said = [];

async function api(method, path, body) {
  const headers = { authorization: `Bearer ${TIDINGS_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(TIDINGS_URL + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  assert(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
}

async function open(user, peer) {
  const page = await contexts[user].newPage();
  page.on("console", (message) => console.log(`# ${user}: ${message.text()}`));
  page.on("pageerror", (error) => console.log(`# ${user}: ${error}`));
  page.on("websocket", () => (sockets[user] += 1));
  const url = `http://${ways[user].address}`;
  await page.goto(`${url}/page.html?${new URLSearchParams({ url, token: tokens[user], peer })}`);
  await page.waitForFunction(() => window.isReady, undefined, { timeout: 60_000 });
  pages[user] = page;
}

const holds = (page, check, given) => page.waitForFunction(check, given, { timeout: 60_000, polling: 50 });

async function bothShow() {
  for (const user of [ada, ben]) {
    await holds(pages[user], (expected) => JSON.stringify(window.texts()) === JSON.stringify(expected), said).catch(async () => {
      throw new Error(`${user} sees ${JSON.stringify(await pages[user].evaluate(() => window.texts()))}, not ${JSON.stringify(said)}`);
    });
  }
}

async function say(user, text) {
  await pages[user].evaluate((text) => window.say(text), text);
  said.push(`sent ${text}`);
}

const metric = (text, protocol) => Number(new RegExp(`^tidings_sessions_by_protocol\\{protocol="${protocol}"\\} (\\d+)`, "m").exec(text)?.[1] ?? 0);

const failed = await run(`@tidings/client in ${version()}, nginx without upgrades`, [
  ["both users come online, each over an event stream", async () => {
    const before = await (await fetch(`${TIDINGS_URL}/metrics`)).text();
    await open(ada, ben);
    await open(ben, ada);
    for (const user of [ada, ben]) assert((await pages[user].evaluate(() => window.state())) === "online", user);
    const after = await (await fetch(`${TIDINGS_URL}/metrics`)).text();
    assert(metric(after, "event_stream") === metric(before, "event_stream") + 2, "two event streams");
    assert(sockets[ada] === 1 && sockets[ben] === 1, `a WebSocket was tried first: ${JSON.stringify(sockets)}`);
  }],
  ["they talk", async () => {
    for (const text of ["hello", "how are you?"]) await say(ada, text);
    await bothShow();
    await say(ben, "fine");
    await bothShow();
    await holds(pages[ben], () => window.unread() === 2);
  }],
  ["who is cut resumes, without a gap and without a double", async () => {
    ways[ben].block();
    ways[ben].cutAll();
    await holds(pages[ben], () => window.state() === "away");
    for (const text of ["one", "two", "three"]) await say(ada, text);
    await pages[ben].evaluate(() => window.say("written while cut"));
    await holds(pages[ada], () => window.texts().at(-1) === "sent three");
    ways[ben].unblock();
    said.push("sent written while cut");
    await bothShow();
    const heard = await pages[ben].evaluate(() => window.heard);
    assert(JSON.stringify(heard) === JSON.stringify(said.map((text) => text.slice(5))), heard);
  }],
  ["a burst stays in order", async () => {
    await pages[ada].evaluate(() => {
      for (let n = 0; n < 60; n++) window.say(`burst ${n}`);
    });
    for (let n = 0; n < 60; n++) said.push(`sent burst ${n}`);
    await holds(pages[ben], (last) => window.heard.includes(last), "burst 59");
    const heard = await pages[ben].evaluate(() => window.heard);
    assert(JSON.stringify(heard) === JSON.stringify(said.map((text) => text.slice(5))), heard);
  }],
  ["a page that opens again begins with the event stream", async () => {
    const before = sockets[ben];
    await pages[ben].close();
    await open(ben, ada);
    assert(sockets[ben] === before, "no WebSocket was tried");
    await api("POST", "/v1/messages", { from: ada, to: ben, body: { text: "to the new page" } });
    await holds(pages[ben], () => window.texts().at(-1) === "sent to the new page");
  }],
]);
await browser.close();
for (const way of Object.values(ways)) way.end();
process.exit(failed);
