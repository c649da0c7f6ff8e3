// A conversation of 100,000 messages: read back by scrolling, and by a jump to its beginning.
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import { version } from "../../harness/browser.mjs";
import { Window, api, browser, complaints } from "../../harness/page.mjs";

const MESSAGES = 100_000;
const BATCH = 500;
const BATCHES_AT_ONCE = 4;
const EARLY_MS = 100;
const SCROLLS = 150;
// Far enough from the beginning for rows on both sides of it.
const SOUGHT = 700;

let reader;

/** Messages of carol alone: nobody else is sent them while they are made. */
async function seed() {
  await api("POST", "/v1/conversations", { id: "long", kind: "group", name: "Long", owner: "carol", members: [] });
  const batches = Array.from({ length: MESSAGES / BATCH }, (_, batch) => batch);
  const work = async () => {
    for (let batch = batches.shift(); batch !== undefined; batch = batches.shift()) {
      let messages = Array.from({ length: BATCH }, (_, n) => {
        const number = batch * BATCH + n + 1;
        return { conversation: "long", from: "carol", body: { text: `${number}: ${"word ".repeat(1 + (number * 7) % 40)}` } };
      });
      // A busy machine delivers more slowly than it stores: then the server says of messages that they come too early.
      while (messages.length > 0) {
        const { results } = await api("POST", "/v1/messages/batch", { messages });
        const refused = results.filter((result) => result.seq === undefined);
        assert(refused.every(({ error }) => error.retry), refused);
        messages = messages.filter((_, index) => results[index].seq === undefined);
        if (refused.length > 0) await new Promise((resolve) => setTimeout(resolve, EARLY_MS));
      }
    }
  };
  await Promise.all(Array.from({ length: BATCHES_AT_ONCE }, work));
  await api("POST", "/v1/conversations/long/members", { add: ["bob"] });
}

/** Collects what blocks the page for longer than 50 ms from here on. */
async function watchTasks() {
  await reader.page.evaluate(() => {
    window.longTasks = [];
    window.observer ??= new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration)));
    window.observer.observe({ type: "longtask" });
  });
}

async function tellTasks(what, began) {
  const { tasks, heap } = await reader.page.evaluate(() => ({ tasks: window.longTasks, heap: performance.memory.usedJSHeapSize }));
  const longest = Math.max(0, ...tasks).toFixed(0);
  console.log(`# ${what} in ${((performance.now() - began) / 1000).toFixed(1)} s; tasks over 50 ms: ${tasks.length}, over 100 ms: ${tasks.filter((ms) => ms > 100).length}, the longest ${longest} ms; heap ${(heap / 1e6).toFixed(0)} MB`);
}

console.log(`# ${MESSAGES} messages are made`);
const began = performance.now();
await seed(); // how long that takes is the machine's affair: no case
console.log(`# in ${((performance.now() - began) / 1000).toFixed(0)} s`);

const failed = await run(`a conversation of ${MESSAGES} messages in ${version()}`, [
  ["scrolling back: rows are in order, few are drawn, and the place stays while pages come", async () => {
    reader = await Window.open("bob", { hash: "#long" });
    await reader.sees("article");
    await watchTasks();
    const began = performance.now();
    const { mistakes, drawnMax, loaded, first } = await reader.page.evaluate(async (scrolls) => {
      const box = document.querySelector(".history");
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      const seqs = () => [...document.querySelectorAll("article[data-seq]")].map(({ dataset }) => Number(dataset.seq));
      let [mistakes, drawnMax] = [0, 0];
      for (let scroll = 0; scroll < scrolls; scroll++) {
        box.scrollTop -= box.clientHeight * 0.8;
        await frame();
        const shown = seqs();
        if (shown.some((seq, index) => index > 0 && seq !== shown[index - 1] + 1)) mistakes++;
        drawnMax = Math.max(drawnMax, shown.length);
      }
      return { mistakes, drawnMax, loaded: box.scrollHeight, first: seqs()[0] };
    }, SCROLLS);
    await tellTasks(`scrolled ${SCROLLS} times, back to ${first}, ${loaded} px high`, began);
    assert(mistakes === 0 && drawnMax > 0 && drawnMax < 150, { mistakes, drawnMax });
    assert(first < MESSAGES - 100, `it did not go back beyond ${first}`);
  }],
  ["a jump to the beginning reads all between, shows it, and leads back to the end", async () => {
    await api("PUT", `/v1/conversations/long/messages/${SOUGHT}/pin`);
    const { text } = (await api("GET", `/v1/conversations/long/messages/${SOUGHT}`)).body;
    await reader.page.getByRole("button", { name: "Pinned messages" }).click();
    await watchTasks();
    const began = performance.now();
    await reader.page.click(".pin");
    await reader.sees(`.row.is-marked:has(article[data-seq="${SOUGHT}"]:has-text("${text.trim()}"))`);
    await tellTasks(`jumped to ${SOUGHT}`, began);
    await watchTasks();
    const again = performance.now();
    const { mistakes, isSeen } = await reader.page.evaluate(async (sought) => {
      const box = document.querySelector(".history");
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      const edge = box.getBoundingClientRect();
      const row = document.querySelector(`article[data-seq="${sought}"]`).getBoundingClientRect();
      let mistakes = 0;
      for (let scroll = 0; scroll < 60; scroll++) {
        box.scrollTop += scroll < 30 ? -300 : 300;
        await frame();
        const shown = [...document.querySelectorAll("article[data-seq]")].map(({ dataset }) => Number(dataset.seq));
        if (shown.some((seq, index) => index > 0 && seq !== shown[index - 1] + 1)) mistakes++;
      }
      return { mistakes, isSeen: row.top >= edge.top && row.bottom <= edge.bottom };
    }, SOUGHT);
    await tellTasks("scrolled 60 times among all of them", again);
    assert(isSeen && mistakes === 0, { isSeen, mistakes });
    await watchTasks();
    const live = performance.now();
    await api("POST", "/v1/messages", { conversation: "long", from: "carol", body: { text: "one more" } });
    await reader.sees(".to-end .badge:has-text('1')");
    await reader.page.getByRole("button", { name: /newest|below/u }).click();
    await reader.waitForTexts(["one more"]);
    await tellTasks("one more came, and the end", live);
  }],
  ["the page did not fail, nor wanted what its policy forbids", async () => assert(complaints.length === 0, complaints.join("\n"))],
]);
await browser.close();
process.exit(failed);
