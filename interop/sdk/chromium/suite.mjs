// The TypeScript client in Chromium: tabs that share one connection, and a database that outlives them.
import { createECDH } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { launch, launchWithProfile, proxy, serve, version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const { INTEROP_TMP, TIDINGS_URL, TIDINGS_API_KEY, SUITE, TOKEN_ADA, TOKEN_BEN, TOKEN_CY } = process.env;
const file = (path) => fileURLToPath(new URL(path, import.meta.url));
const compiled = file("../../../sdk/typescript/dist/src");
const modules = readdirSync(compiled, { recursive: true }).filter((name) => name.endsWith(".js"));
const files = Object.fromEntries(modules.map((name) => [`/src/${name}`, `${compiled}/${name}`]));
const pages = await serve({ "/": file("page.html"), "/sw.js": file("sw.js"), ...files });
const between = await proxy(() => new URL(TIDINGS_URL).host);
const browser = await launch();
const [ada, ben, cy] = ["ada", "ben", "cy"].map((who) => `${SUITE}-${who}`);
const tokens = { [ada]: TOKEN_ADA, [ben]: TOKEN_BEN, [cy]: TOKEN_CY };

async function api(method, path, body) {
  const headers = { authorization: `Bearer ${TIDINGS_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(TIDINGS_URL + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  assert(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
}

const devicesOf = async (user) => (await api("GET", `/v1/presence?users=${user}`)).users[0].devices;

async function open(context, user, peer, more = {}) {
  const page = await context.newPage();
  page.on("console", (message) => console.log(`# ${message.text()}`));
  page.on("pageerror", (error) => console.log(`# ${error}`));
  await page.goto(`${pages.origin}/?${new URLSearchParams({ url: `http://${between.address}`, token: tokens[user], peer, ...more })}`);
  await page.waitForFunction(() => window.isReady);
  return page;
}

const holds = (page, check, given) => page.waitForFunction(check, given, { timeout: 60_000, polling: 50 });

async function shows(page, expected) {
  await holds(page, (expected) => JSON.stringify(window.texts()) === JSON.stringify(expected), expected).catch(async () => {
    throw new Error(`the page shows ${JSON.stringify(await page.evaluate(() => window.texts()))}, not ${JSON.stringify(expected)}`);
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** In the page: the names of what its database has. */
async function storedNames() {
  const open = indexedDB.open("chat of ben");
  const database = await new Promise((resolve) => (open.onsuccess = () => resolve(open.result)));
  const keys = database.transaction("values").objectStore("values").getAllKeys();
  const names = await new Promise((resolve) => (keys.onsuccess = () => resolve(keys.result)));
  database.close();
  return names;
}

const context = await browser.newContext();
const tabs = [];
const said = [];
const allShow = () => Promise.all(tabs.map((tab) => shows(tab, said)));

const failed = await run(`@tidings/client in ${version()}`, [
  ["three tabs are one device with one session", async () => {
    for (let n = 0; n < 3; n++) tabs.push(await open(context, ada, ben));
    const devices = await devicesOf(ada);
    assert(devices.length === 1, devices);
    for (const tab of tabs) assert((await tab.evaluate(() => window.state())) === "online", "online");
  }],
  ["what any tab sends, and what comes, all tabs show once", async () => {
    for (const [n, tab] of tabs.entries()) {
      await tab.evaluate((text) => window.say(text), `from tab ${n}`);
      said.push(`sent from tab ${n}`);
      await allShow();
    }
    await api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "from ben" } });
    said.push("sent from ben");
    await allShow();
    for (const tab of tabs) await holds(tab, () => window.unread() === 1);
  }],
  ["a cut connection comes back for all tabs", async () => {
    between.cutAll();
    await api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "while it was cut" } });
    said.push("sent while it was cut");
    await allShow();
  }],
  ["the tab with the connection is closed: the others go on, and miss nothing", async () => {
    await tabs.shift().close();
    await api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "after one tab closed" } });
    said.push("sent after one tab closed");
    await allShow();
    await tabs[1].evaluate(() => window.say("from the last tab"));
    said.push("sent from the last tab");
    await allShow();
    assert((await devicesOf(ada)).length === 1, "one device still");
    const heard = await tabs[0].evaluate(() => window.heard);
    assert(JSON.stringify(heard) === JSON.stringify(said.map((text) => text.slice(5))), heard);
  }],
  ["one tab closes while another opens", async () => {
    const [opened] = await Promise.all([open(context, ada, ben), tabs.shift().close()]);
    tabs.push(opened);
    await api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "to the last two" } });
    said.push("sent to the last two");
    await allShow();
  }],
  ["tabs that do not share are devices of their own, and none replaces another", async () => {
    const apart = [await open(context, cy, ben, { share: "no" }), await open(context, cy, ben, { share: "no" })];
    assert((await devicesOf(cy)).length === 2, "two devices");
    for (const tab of apart) assert((await tab.evaluate(() => window.state())) === "online", "online");
    await Promise.all(apart.map((tab) => tab.close()));
  }],
  ["a page that opens without a network shows what was stored, and sends later what is written", async () => {
    const kept = await browser.newContext();
    let page = await open(kept, ben, ada, { keep: "ben" });
    const before = said.map((text) => text);
    await shows(page, before);
    between.block();
    between.cutAll();
    await holds(page, () => window.state() === "away");
    await page.evaluate(() => window.say("written offline"));
    await shows(page, [...before, "pending written offline"]);
    while (!(await page.evaluate(storedNames)).some((name) => name.startsWith("outbox/"))) await pause(50);
    await page.close();
    page = await open(kept, ben, ada, { keep: "ben" });
    await shows(page, [...before, "pending written offline"]);
    between.unblock();
    await shows(page, [...before, "sent written offline"]);
    said.push("sent written offline");
    await allShow();
  }],
  ["what a tab without the connection had not sent when it was closed, the one with the connection sends", async () => {
    const kept = await browser.newContext();
    const [leading, closing] = [await open(kept, ben, ada, { keep: "ben" }), await open(kept, ben, ada, { keep: "ben" })];
    for (const tab of [leading, closing]) await shows(tab, said);
    between.block();
    between.cutAll();
    for (const tab of [leading, closing]) await holds(tab, () => window.state() === "away");
    await closing.evaluate(() => window.say("by the tab that closes"));
    while (!(await closing.evaluate(storedNames)).some((name) => name.startsWith("outbox/"))) await pause(50);
    await closing.close();
    await shows(leading, [...said, "pending by the tab that closes"]);
    between.unblock();
    said.push("sent by the tab that closes");
    await shows(leading, said);
    await allShow();
    await kept.close();
  }],
  ["a browser that stores nothing more: the page is told once, and goes on", async () => {
    const kept = await browser.newContext();
    const page = await open(kept, ben, ada, { keep: "ben" });
    await shows(page, said);
    const devtools = await kept.newCDPSession(page);
    await devtools.send("Storage.overrideQuotaForOrigin", { origin: pages.origin, quotaSize: 1 });
    const say = async (text) => {
      await page.evaluate((text) => window.say(text), text);
      said.push(`sent ${text}`);
      await shows(page, said);
    };
    // The browser looks at its quota again only half a minute after it last found room.
    for (let n = 1; !(await page.evaluate(() => window.failures.length > 0)); n++) {
      await say(`without room ${n}`);
      await pause(2_000);
    }
    await say("and on");
    assert((await page.evaluate(() => window.failures.join())) === "storage_full", await page.evaluate(() => window.failures.join()));
    assert((await page.evaluate(() => window.state())) === "online", "online");
    await allShow();
    // The next page begins without what could not be stored, and shows it all the same.
    await devtools.send("Storage.overrideQuotaForOrigin", { origin: pages.origin });
    await page.close();
    const again = await open(kept, ben, ada, { keep: "ben" });
    await shows(again, said);
  }],
  ["a browser that allows no notifications: the client says so, in a private window, too", async () => {
    const publicKey = createECDH("prime256v1").generateKeys("base64url");
    // A new context is a private window, where Chromium tells a denied permission by another error than in one with a profile.
    for (const context of [await browser.newContext(), await launchWithProfile(join(INTEROP_TMP, "profile"))]) {
      const page = await open(context, cy, ada);
      const code = await page.evaluate(async (publicKey) => {
        await navigator.serviceWorker.register("/sw.js");
        return window.client.offlinePush.subscribe({ publicKey }).then(() => "subscribed", (error) => error.code);
      }, publicKey);
      assert(code === "notifications_denied", code);
      await context.close();
    }
  }],
]);
await browser.close();
between.end();
pages.end();
process.exit(failed);
