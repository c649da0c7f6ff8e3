// The chat page in Chromium: users who talk to each other, in contexts of their own, and what may come between them.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import { arranging } from "./arranging.mjs";
import { growing } from "./growing.mjs";
import { mentioning } from "./mentioning.mjs";
import { Window, api, badge, browser, complaints, line, say } from "../../harness/page.mjs";

const AXE = readFileSync(fileURLToPath(new URL("../../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const BURST = 300;
const PEOPLE = ["alice", "bob", "carol"];

let alice;
let bob;
/** The windows that the cases of other files go on with. */
const people = {};

async function findings(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html.slice(0, 160)} ${failureSummary}`).slice(0, 3).join(" | ")}`);
}

const failed = await run(`the chat page in ${version()}`, [
  ["each window chooses who it is, and both show what either writes", async () => {
    alice = await Window.open("alice", { hash: "#demo" });
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    bob = await Window.open("nobody", { context });
    bob.user = "bob";
    Object.assign(people, { alice, bob });
    await bob.page.getByRole("button", { name: "Bob" }).click();
    await bob.choose("Demo");
    await alice.write("hello <b>& grüße 😀");
    await bob.waitForTexts(["hello <b>& grüße 😀"]);
    await bob.write("two\nlines");
    for (const window of [alice, bob]) await window.waitForTexts(["hello <b>& grüße 😀", "two\nlines"]);
    await bob.page.reload();
    await bob.waitForTexts(["hello <b>& grüße 😀", "two\nlines"]);
  }],
  ["curl's message appears", async () => {
    await say("demo", "carol", "from a terminal");
    for (const window of [alice, bob]) await window.waitForTexts(["two\nlines", "from a terminal"]);
  }],
  ["an edit is seen by both, once", async () => {
    await alice.write("teh edit");
    for (const window of [alice, bob]) await window.sees("article[data-state=sent]:has-text('teh edit')");
    await alice.page.press("textarea", "ArrowUp");
    await alice.until(() => document.querySelector("textarea").value === "teh edit");
    await alice.write("the edit");
    for (const window of [alice, bob]) {
      await window.sees("article:has-text('the edit') .message-edited");
      await window.waitForTexts(["from a terminal", "the edit"]);
    }
  }],
  ["a reaction is seen by both, and taken back", async () => {
    await bob.act("the edit", "React");
    await bob.page.getByRole("button", { name: "party" }).click();
    for (const window of [alice, bob]) await window.sees("article:has-text('the edit') .reaction:has-text('🎉')");
    await alice.page.click(".reaction:has-text('🎉')");
    await bob.sees(".reaction:has-text('2')");
    for (const window of [alice, bob]) await window.page.click(".reaction:has-text('🎉')");
    for (const window of [alice, bob]) await window.misses(".reaction");
  }],
  ["a reply shows what it answers, and leads there", async () => {
    await bob.act("from a terminal", "Reply");
    await bob.write("an answer");
    await alice.sees("article:has-text('an answer') .quote:has-text('from a terminal')");
    await alice.page.click("article:has-text('an answer') .quote");
    await alice.sees(".row.is-marked:has-text('from a terminal')");
  }],
  ["a pin is shown to both", async () => {
    await alice.act("the edit", "Pin");
    await bob.sees("article:has-text('the edit') [aria-label=pinned]");
    await bob.page.getByRole("button", { name: "Pinned messages" }).click();
    await bob.sees(".pin:has-text('the edit')");
    await bob.page.keyboard.press("Escape");
    await bob.misses(".pin");
  }],
  ["a message that is taken back is gone for both", async () => {
    await bob.act("an answer", "Take back");
    await bob.page.getByRole("button", { name: "Take it back" }).click();
    for (const window of [alice, bob]) {
      await window.sees("article:has-text('This message was taken back.')");
      await window.misses("article:has-text('an answer')");
    }
  }],
  ["a mention is completed, and told in the list", async () => {
    await bob.page.goto(bob.page.url().replace(/#.*/u, `#${encodeURIComponent("bob~carol")}`));
    await alice.page.fill("textarea", "");
    await alice.page.locator("textarea").pressSequentially("look @bo");
    await alice.sees("[role=option]:has-text('Bob')");
    await alice.page.press("textarea", "Tab");
    await alice.page.press("textarea", "Enter");
    await alice.sees("article .mention:has-text('@Bob')");
    await bob.sees(`${line("Demo")} .badge.is-mention`);
    await bob.choose("Demo");
    await bob.misses(`${line("Demo")} .badge`);
    await bob.sees(".first-new");
  }],
  ["who is online is said while it is known, and nothing else is", async () => {
    await bob.choose("Carol"); // nobody has written there: she may not be watched yet
    await bob.misses('header span:text-is("offline")');
    await bob.choose("Demo");
    await bob.sees("header .is-online");
    await bob.leave();
    await bob.misses("header .is-online");
    await bob.comeBack();
    await bob.sees("header .is-online");
  }],
  ["offline: what came meanwhile is there once and in order, and counted as unread", async () => {
    await bob.choose("Carol");
    await bob.leave();
    for (const n of [1, 2, 3]) await say("demo", n === 2 ? "carol" : "alice", `meanwhile ${n}`);
    await bob.comeBack();
    await bob.sees(".banner:has-text('3 messages came meanwhile')");
    await bob.sees(`${badge("Demo")}:has-text('3')`);
    await bob.choose("Demo");
    await bob.waitForTexts(["meanwhile 1", "meanwhile 2", "meanwhile 3"]);
    await bob.misses(badge("Demo"));
  }],
  ["offline: what was written meanwhile is sent later, once", async () => {
    await bob.leave();
    await bob.write("written offline");
    await bob.sees("article[data-state=pending]:has-text('written offline')");
    await bob.comeBack();
    for (const window of [alice, bob]) await window.waitForTexts(["meanwhile 3", "written offline"]);
    await bob.misses("article[data-state=pending]");
  }],
  ["what the server refuses says why, and can be tried again or discarded", async () => {
    await bob.page.fill("textarea", "x".repeat(70_000));
    await bob.page.press("textarea", "Enter");
    await bob.sees(".refused");
    await bob.page.click(".refused >> text=Try again");
    await bob.sees(".refused");
    await bob.page.click(".refused >> text=Discard");
    await bob.misses(".refused");
  }],
  [`a burst of ${BURST} messages: all are there, in order`, async () => {
    await alice.page.evaluate(() => {
      window.longTasks = [];
      new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
    });
    const { seq: first } = await say("demo", "bob", "before the burst");
    const began = performance.now();
    const sent = Array.from({ length: BURST }, (_, n) => say("demo", PEOPLE[1 + (n % 2)], `burst ${n}`));
    const seqs = (await Promise.all(sent)).map(({ seq }) => seq);
    const last = Math.max(...seqs);
    await alice.sees(`article[data-seq="${last}"]`);
    const took = performance.now() - began;
    const expected = seqs.map((seq, n) => [seq, `burst ${n}`]).sort(([a], [b]) => a - b);
    const { mistakes, drawnMax, messages } = await alice.readUpTo(first);
    assert(mistakes === 0, `${mistakes} times out of order`);
    assert(JSON.stringify(messages.filter(([seq]) => seq > first && seq <= last)) === JSON.stringify(expected), messages.slice(-BURST));
    assert(drawnMax < 100, `${drawnMax} messages are drawn at once`);
    const tasks = await alice.page.evaluate(() => window.longTasks);
    console.log(`# ${BURST} messages in ${took.toFixed(0)} ms; tasks over 50 ms: ${tasks.length}, the longest ${Math.max(0, ...tasks).toFixed(0)} ms; ${drawnMax} drawn at the end`);
    await alice.page.getByRole("button", { name: /newest|below/u }).click();
    await alice.sees(`article[data-seq="${last}"]`);
  }],
  ["by keys alone: to a conversation, a message, its correction, and another's actions", async () => {
    const { page } = alice;
    await page.locator(".search input").focus();
    while (!(await page.evaluate(() => document.activeElement.matches(".line")))) await page.keyboard.press("Tab");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await alice.until(() => document.activeElement?.tagName === "TEXTAREA");
    await page.keyboard.type("by keys");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("alone");
    await page.keyboard.press("Enter");
    await bob.sees("article:has-text('by keys')");
    await bob.waitForTexts(["by keys\nalone"]);
    // A button that leads to the newest message may stand between the composer and the messages.
    while ((await page.evaluate(() => document.activeElement.tagName)) !== "ARTICLE") await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".picker");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    await bob.sees(".reaction:has-text('❤️')");
    await page.keyboard.press("Escape");
    await alice.until(() => document.activeElement?.tagName === "TEXTAREA");
  }],
  ["two windows of one user: what one reads, writes or leaves as a draft, the other shows", async () => {
    const other = await Window.open("bob", { context: bob.context, network: bob.network, hash: `#${encodeURIComponent("bob~carol")}` });
    await other.page.fill("textarea", "a draft");
    await bob.choose("Alice");
    await bob.sees(`${line("Carol")} .line-draft`);
    await other.page.fill("textarea", "");
    await say("demo", "alice", "for both windows");
    for (const window of [bob, other]) await window.sees(badge("Demo"));
    await other.choose("Demo");
    for (const window of [bob, other]) await window.misses(badge("Demo"));
    await other.write("from the other window");
    await bob.choose("Demo");
    for (const window of [alice, bob, other]) await window.waitForTexts(["for both windows", "from the other window"]);
    await other.page.close();
    await bob.write("and from this one");
    await alice.waitForTexts(["from the other window", "and from this one"]);
  }],
  ["hostile bodies are text, within their bubbles", async () => {
    const bodies = [
      "<script>document.title='pwned'</script><img src=x onerror=alert(1)>",
      "w".repeat(60 * 1024),
      "\u202Efdp.exe\u2066 \u202E\u202D",
      `Z${"\u0335\u0321\u0358\u033f".repeat(80)}algo`,
      "javascript:alert(1)",
    ];
    for (const body of bodies) await say("demo", "carol", body);
    await api("POST", "/v1/messages", { conversation: "demo", from: "carol", type: "<i>poll</i>", body: { "<b>": ["<img src=x>"] } });
    await alice.sees("article:has-text('<i>poll</i>')");
    const shown = await alice.page.$$eval("article .body", (all) => all.slice(-6, -1).map((body) => body.textContent));
    assert(shown[0] === bodies[0] && shown[2] === bodies[2] && shown[4] === bodies[4], shown.map((text) => text.slice(0, 80)));
    assert((await alice.page.$$("article script, article img, article iframe, article a")).length === 0, "a body became markup");
    const wide = await alice.page.evaluate(() => {
      const box = document.querySelector(".history");
      const rows = [...document.querySelectorAll(".row")].map((row) => row.getBoundingClientRect());
      // What is drawn of a body beyond it, such as marks that are stacked on a letter, is clipped.
      const isClipped = [...document.querySelectorAll(".body")].every((body) => getComputedStyle(body).overflow === "clip");
      return { isWide: box.scrollWidth > box.clientWidth, overlaps: rows.some((row, index) => index > 0 && row.top < rows[index - 1].bottom - 1), isClipped };
    });
    assert(!wide.isWide && !wide.overlaps && wide.isClipped, wide);
    await alice.page.getByRole("button", { name: /Show all/u }).click();
    assert((await alice.page.title()).includes("Alice"), "a body ran");
  }],
  ...growing(people),
  ...mentioning(people),
  ...arranging(people),
  ["a phone shows the list or the conversation, and leads from one to the other", async () => {
    const phone = await Window.open("carol", { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
    await phone.page.tap(line("Demo"));
    await phone.sees("textarea");
    assert(!(await phone.page.isVisible(".list")), "the list is seen beside the conversation");
    await phone.page.tap("article >> nth=-1");
    await phone.page.waitForSelector("article:focus .toolbar");
    await phone.page.setViewportSize({ width: 320, height: 640 });
    await phone.page.locator("article:focus").getByRole("button", { name: "React" }).tap();
    await phone.page.waitForSelector(".picker");
    const isCut = await phone.page.$$eval(".picker button", (all) => all.some((one) => one.getBoundingClientRect().left < 0 || one.getBoundingClientRect().right > innerWidth));
    assert(!isCut, "a reaction is beside the screen");
    await phone.page.keyboard.press("Escape");
    await phone.page.setViewportSize({ width: 390, height: 844 });
    await phone.page.getByRole("button", { name: "Back to the list" }).tap();
    await phone.page.waitForSelector(".list", { state: "visible" });
    assert(!(await phone.page.isVisible("textarea")), "the conversation is seen beside the list");
    const wider = await phone.page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert(!wider, "the page is wider than the phone");
    await phone.context.close();
    phone.network.end();
  }],
  ["axe-core finds nothing serious, in light and dark, wide and narrow", async () => {
    for (const colorScheme of ["light", "dark"]) {
      for (const viewport of [{ width: 1280, height: 800 }, { width: 390, height: 844 }]) {
        const window = await Window.open("bob", { colorScheme, viewport });
        await window.sees(".line");
        const found = await findings(window.page);
        await window.choose("Demo");
        await window.sees("article");
        await window.page.locator("article").last().focus();
        found.push(...(await findings(window.page)));
        await window.page.getByRole("button", { name: "Members" }).click();
        await window.sees(".people-list li");
        found.push(...(await findings(window.page)));
        assert(found.length === 0, `${colorScheme} ${viewport.width}: ${found.join("\n")}`);
        await window.context.close();
        window.network.end();
      }
    }
  }],
  ["no page failed, nor wanted what its policy forbids", async () => assert(complaints.length === 0, complaints.join("\n"))],
]);
await browser.close();
process.exit(failed);
