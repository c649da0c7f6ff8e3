// What users arrange for themselves: preferences of the list, drafts, members, and the popups that come between.
import { assert } from "../../harness/session.mjs";
import { Window, api, badge, line, say } from "../../harness/page.mjs";

const BOBS = { demo: "#demo", carol: `#${encodeURIComponent("bob~carol")}` };

/** Picks an entry of the menu of a line. */
async function set(window, title, entry) {
  await window.page.click(line(title), { button: "right" });
  await window.page.getByRole("menuitem", { name: entry, exact: true }).click();
}

const titles = (window) => window.page.$$eval(".line-place .line-title", (all) => all.map(({ textContent }) => textContent));

async function standsFirst(window, title) {
  await window.until((title) => document.querySelector(".line-place .line-title")?.textContent === title, title);
}

export const arranging = (people) => [
  ["a pinned conversation stands first, in both windows of its user and for nobody else", async () => {
    const { alice, bob } = people;
    people.other = await Window.open("bob", { context: bob.context, network: bob.network, hash: BOBS.carol });
    await say("bob~carol", "carol", "the newest");
    await standsFirst(people.other, "Carol");
    await set(bob, "Demo", "Pin to the top");
    for (const window of [bob, people.other]) {
      await standsFirst(window, "Demo");
      await window.sees(`${line("Demo")} [aria-label=pinned]`);
    }
    assert((await alice.page.$$(`${line("Demo")} [aria-label=pinned]`)).length === 0, "alice's list has bob's pin");
    await set(bob, "Demo", "Unpin from the top");
    await standsFirst(people.other, "Carol");
  }],
  ["an archived conversation is in the archive, also when a message comes and after a reload", async () => {
    const { bob, other } = people;
    await set(bob, "Demo", "Archive");
    for (const window of [bob, other]) await window.misses(line("Demo"));
    await say("demo", "alice", "to the archive");
    await bob.page.reload();
    await bob.sees(line("Carol"));
    assert(!(await titles(bob)).includes("Demo"), await titles(bob));
    await bob.page.click(".filter:has-text('Archived')");
    await bob.sees(`${badge("Demo")}:has-text('1')`);
    await bob.choose("Demo");
    await bob.waitForTexts(["to the archive"]);
    await set(bob, "Demo", "Take out of the archive");
    await bob.misses(line("Demo"));
    await bob.page.click(".filter:has-text('All')");
    for (const window of [bob, other]) await window.sees(line("Demo"));
  }],
  ["a hidden conversation comes back with its next message", async () => {
    const { bob, other } = people;
    await set(bob, "Demo", "Hide until the next message");
    for (const window of [bob, other]) await window.misses(line("Demo"));
    await say("demo", "alice", "here again");
    for (const window of [bob, other]) await window.sees(`${line("Demo")}:has-text('here again')`);
  }],
  ["a name of one's own", async () => {
    const { alice, bob, other } = people;
    await set(bob, "Demo", "Name for me…");
    await bob.page.fill("dialog input", "The <i>neighbours</i>");
    await bob.page.keyboard.press("Enter");
    for (const window of [bob, other]) await window.sees(line("The <i>neighbours</i>"));
    assert((await titles(alice)).includes("Demo"), await titles(alice));
    await set(other, "The <i>neighbours</i>", "Name for me…");
    await other.page.fill("dialog input", "");
    await other.page.keyboard.press("Enter");
    for (const window of [bob, other]) await window.sees(line("Demo"));
  }],
  ["marked as unread, until it is opened", async () => {
    const { bob, other } = people;
    await bob.choose("Demo");
    await other.misses(badge("Demo"));
    await set(bob, "Demo", "Mark as unread");
    for (const window of [bob, other]) await window.sees(`${badge("Demo")}:has-text('•')`);
    await bob.page.click(".filter:has-text('Unread')");
    await bob.choose("Demo");
    for (const window of [bob, other]) await window.misses(badge("Demo"));
    await bob.page.click(".filter:has-text('All')");
  }],
  ["a muted conversation counts quietly, and not in the title", async () => {
    const { bob, other } = people;
    await bob.page.getByRole("button", { name: "Mute", exact: true }).click();
    await bob.sees(`${line("Demo")} [aria-label=muted]`);
    await bob.choose("Carol");
    await say("demo", "alice", "quietly");
    await bob.sees(`${badge("Demo")}.is-muted:has-text('1')`);
    await other.page.reload(); // mutes are read with the list
    await other.sees(`${badge("Demo")}.is-muted:has-text('1')`);
    assert((await bob.page.title()) === "Bob · Tidings", await bob.page.title());
    await bob.choose("Demo");
    await bob.page.getByRole("button", { name: "Unmute", exact: true }).click();
    await bob.misses(`${line("Demo")} [aria-label=muted]`);
  }],
  ["a cleared history is gone for its user alone, and goes on", async () => {
    const { alice, bob } = people;
    await alice.sees("article:has-text('quietly')");
    await bob.sees("article:has-text('quietly')");
    await bob.page.getByRole("button", { name: "More", exact: true }).click();
    await bob.page.getByRole("menuitem", { name: "Clear the history…" }).click();
    await bob.page.getByRole("button", { name: "Clear", exact: true }).click();
    await bob.misses("article");
    await say("demo", "alice", "a new beginning");
    await bob.waitForTexts(["a new beginning"]);
    await bob.page.reload();
    await bob.waitForTexts(["a new beginning"]);
    assert((await bob.page.$$("article")).length === 1, "what was cleared is back");
    await alice.waitForTexts(["quietly", "a new beginning"]);
  }],
  ["a draft outlives a reload, and follows to the other window, which may go on with it", async () => {
    const { bob, other } = people;
    await other.choose("Demo");
    await bob.page.bringToFront();
    await bob.page.fill("textarea", "half a thought");
    await bob.page.press("textarea", "End");
    await other.page.bringToFront();
    await other.until(() => document.querySelector("textarea").value === "half a thought");
    await bob.page.reload();
    await bob.until(() => document.querySelector("textarea")?.value === "half a thought");
    await other.page.press("textarea", "Enter");
    await bob.waitForTexts(["a new beginning", "half a thought"]);
    await bob.until(() => document.querySelector("textarea").value === "");
    await other.page.close();
    await bob.page.bringToFront();
  }],
  ["the members of a group: one is removed and added again, and all are told", async () => {
    const { alice, bob } = people;
    await alice.page.getByRole("button", { name: "Members" }).click();
    await alice.sees(".people-list li:has-text('Alice (you)'):has-text('owner')");
    await alice.page.getByRole("button", { name: "Remove Carol" }).click();
    await bob.sees(".notice:has-text('Carol removed by Alice')");
    await alice.page.getByRole("button", { name: "Add Carol" }).click();
    await bob.sees(".notice:has-text('Carol joined, added by Alice')");
    await alice.sees(".people-list li:has-text('Carol') [aria-label='Remove Carol']");
    await alice.page.keyboard.press("Escape");
  }],
  ["a popup is shown once over two devices, and what is done with it is counted", async () => {
    const counts = async () => (await api("GET", "/v1/popups/welcome/counts")).hours.reduce((sum, { shown, impressions, dismissals }) =>
      ({ shown: sum.shown + shown, seen: sum.seen + impressions, dismissed: sum.dismissed + dismissals }), { shown: 0, seen: 0, dismissed: 0 });
    const before = await counts();
    const first = await Window.open("carol");
    await first.sees(".popup:has-text('Welcome to Tidings')");
    await first.page.locator(".popup").getByRole("button", { name: "Close" }).click();
    await first.misses(".popup");
    const second = await Window.open("carol");
    await second.sees(line("Demo"));
    // One that the server triggers comes to the newest session, after the answer to what that session had asked.
    const content = { title: "<b>News</b>", text: "Triggered", buttons: [{ id: "ok", label: "Good", action: { type: "dismiss" } }] };
    await api("PUT", "/v1/popups/news", { state: "live", placements: ["news"], trigger: { event: "news" }, variants: [{ id: "a", content }] });
    await api("POST", "/v1/popups/trigger", { user: "carol", placement: "news", event: { name: "news" } });
    await second.sees(".popup:has-text('<b>News</b>')");
    await second.page.getByRole("button", { name: "Good" }).click();
    await second.misses(".popup");
    const end = performance.now() + 60_000;
    for (let now = await counts(); now.seen <= before.seen || now.dismissed <= before.dismissed; now = await counts()) {
      assert(performance.now() < end, `the server has counted ${JSON.stringify(now)}`);
    }
    const now = await counts();
    assert(now.shown - before.shown === 1 && now.seen - before.seen === 1, [before, now]);
    for (const window of [first, second]) {
      await window.context.close();
      window.network.end();
    }
  }],
];
