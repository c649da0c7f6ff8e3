// docs/examples/chat.html in Chromium: two pages that chat, while connections are cut and the server dies.
import { launch, proxy, version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const app = process.argv[2];
const ask = async (path) => (await fetch(app + path)).text();
let target = await ask("/address");
const between = await proxy(() => target);
const browser = await launch();

/** A page of its own browser profile, or of `context`'s. */
async function open(user, peer, context) {
  const page = await (context ?? (await browser.newContext())).newPage();
  const server = encodeURIComponent(`ws://${between.address}/v1/connect`);
  await page.goto(`${app}/?user=${user}&with=${peer}&server=${server}`);
  return page;
}

const lines = (page) => page.$$eval("#log li", (items) => items.map((item) => item.textContent));
const state = (page) => page.$eval("#state", (output) => output.value);

async function say(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

/** Waits until the page shows exactly this; the state, if one is given. */
async function shows(page, expected, wanted) {
  const holds = ([expected, wanted]) => {
    const lines = [...document.querySelectorAll("#log li")].map((item) => item.textContent);
    const state = document.querySelector("#state").value;
    return JSON.stringify(lines) === JSON.stringify(expected) && (!wanted || state.startsWith(wanted));
  };
  await page.waitForFunction(holds, [expected, wanted], { timeout: 100_000, polling: 50 }).catch(async () => {
    throw new Error(`the page shows ${JSON.stringify(await lines(page))} (${await state(page)}), not ${JSON.stringify(expected)}`);
  });
}

const said = [];
const pages = { ada: await open("ada", "ben"), ben: await open("ben", "ada") };
const both = (wanted = "online") => Promise.all([shows(pages.ada, said, wanted), shows(pages.ben, said, wanted)]);

async function saysAndBothShow(user, text) {
  await say(pages[user], text);
  said.push(`${user}: ${text}`);
  await both();
}

const failed = await run(`docs/examples/chat.html in ${version()}`, [
  ["two pages chat", async () => {
    await saysAndBothShow("ada", "hello <b>& grüße 😀");
    await saysAndBothShow("ben", "hi");
  }],
  ["a cut connection comes back, with what was said meanwhile, once", async () => {
    between.block();
    between.cutAll();
    await Promise.all([shows(pages.ada, said, "away"), shows(pages.ben, said, "away")]);
    await ask("/say?from=ada&to=ben&text=from+another+device");
    said.push("ada: from another device");
    between.unblock();
    await both();
  }],
  ["what is typed while away is sent later, once", async () => {
    between.block();
    between.cutAll();
    await shows(pages.ada, said, "away");
    await say(pages.ada, "typed while away");
    await shows(pages.ada, [...said, "(typed while away)"], "away");
    between.unblock();
    said.push("ada: typed while away");
    await both();
  }],
  ["the server is killed and started again", async () => {
    await ask("/kill");
    await say(pages.ben, "typed while it was dead");
    await shows(pages.ben, [...said, "(typed while it was dead)"], "away");
    target = await ask("/start");
    said.push("ben: typed while it was dead");
    await both();
    await saysAndBothShow("ada", "back again");
  }],
  ["the server is stopped in order and started again", async () => {
    await ask("/stop");
    target = await ask("/start");
    await saysAndBothShow("ben", "after the update");
  }],
  ["many messages from both, with cuts at random: all on both pages, once, in one order", async () => {
    for (let n = 0; n < 20; n++) {
      await Promise.all([say(pages.ada, `a${n}`), say(pages.ben, `b${n}`)]);
      if (Math.random() < 0.4) between.cutAll();
    }
    await pages.ada.waitForFunction((count) => {
      const lines = [...document.querySelectorAll("#log li")].map((item) => item.textContent);
      return lines.length === count && lines.every((line) => !line.startsWith("("));
    }, said.length + 40, { timeout: 100_000, polling: 50 });
    const all = await lines(pages.ada);
    const came = all.splice(said.length);
    assert(JSON.stringify(all) === JSON.stringify(said), "what was there stays");
    for (const [user, letter] of [["ada", "a"], ["ben", "b"]]) {
      const hers = came.filter((line) => line.startsWith(`${user}: `));
      const expected = Array.from({ length: 20 }, (_, n) => `${user}: ${letter}${n}`);
      assert(JSON.stringify([...hers].sort()) === JSON.stringify(expected.sort()), hers);
    }
    said.push(...came);
    await both();
  }],
  ["a page that is opened later, or reloaded, shows it all", async () => {
    await pages.ben.reload();
    const another = await open("ben", "ada");
    await shows(another, said, "online");
    await both();
    await another.close();
  }],
  ["a tab that has the device of another takes its place, and they do not fight", async () => {
    const device = await pages.ben.evaluate(() => sessionStorage.device);
    const context = await browser.newContext();
    await context.addInitScript((device) => (sessionStorage.device ??= device), device);
    const copy = await open("ben", "ada", context);
    await shows(copy, said, "online");
    await shows(pages.ben, said, "ended: replaced");
    const connections = between.newest();
    for (const n of [1, 2, 3]) {
      await say(copy, `from the copy ${n}`);
      said.push(`ben: from the copy ${n}`);
      await Promise.all([shows(copy, said, "online"), shows(pages.ada, said, "online")]);
    }
    assert(between.newest() === connections, "the tab that was replaced came back by itself");
  }],
]);
await browser.close();
between.end();
process.exit(failed);
