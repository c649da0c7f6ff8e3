// Whom a message calls: everybody, by those who may; and what an edit changes of it.
import { assert } from "../../harness/session.mjs";
import { api, badge, line } from "../../harness/page.mjs";

const CALLED = `${line("Demo")} .badge.is-mention`;

async function begin(window, text) {
  await window.page.fill("textarea", "");
  await window.page.locator("textarea").pressSequentially(text);
}

const choices = (window) => window.page.$$eval("[role=option] bdi", (all) => all.map(({ textContent }) => textContent));

/** Waits until the names that complete what is written are these. */
async function offers(window, text, expected) {
  await begin(window, text);
  const holds = (expected) => JSON.stringify([...document.querySelectorAll("[role=option] bdi")].map(({ textContent }) => textContent)) === expected;
  await window.until(holds, JSON.stringify(expected)).catch(async () => {
    throw new Error(`${window.user} is offered ${JSON.stringify(await choices(window))} for ${text}, not ${JSON.stringify(expected)}`);
  });
}

async function edit(window, text) {
  await window.page.fill("textarea", "");
  await window.page.press("textarea", "ArrowUp");
  await window.page.getByRole("button", { name: "Save" }).waitFor();
  await window.write(text);
}

export const mentioning = (people) => [
  ["@all is offered to who may use it, calls the others, and is counted", async () => {
    const { alice, bob } = people;
    await bob.choose("Demo");
    await bob.sees("article");
    await offers(bob, "@al", ["Alice"]);
    await begin(bob, "");
    await bob.choose("Carol");
    await bob.misses(CALLED);
    await offers(alice, "lunch, @al", ["all"]);
    await alice.sees("[role=option]:has-text('everybody in this conversation')");
    await alice.page.press("textarea", "Enter");
    await alice.page.press("textarea", "Enter");
    await alice.sees("article:has-text('lunch') .mention:text-is('@all')");
    await alice.misses("article:has-text('lunch') .mention.is-me");
    await bob.sees(CALLED);
    await bob.choose("Demo");
    await bob.sees("article:has-text('lunch') .mention.is-me:text-is('@all')");
    await bob.misses(CALLED);
  }],
  ["who may use @all is followed as it is set: all members, then nobody", async () => {
    const { alice, bob } = people;
    await api("PATCH", "/v1/conversations/demo", { mention_all: "members" });
    await bob.sees(".notice:has-text('All members may mention @all')");
    await offers(bob, "@al", ["Alice", "all"]);
    await bob.write("@all, dinner?");
    await alice.sees("article:has-text('dinner') .mention.is-me:text-is('@all')");
    await api("PATCH", "/v1/conversations/demo", { mention_all: "nobody" });
    await alice.sees(".notice:has-text('Nobody may mention @all')");
    await offers(alice, "@al", []);
    await alice.write("@all, supper?");
    await bob.sees("article[data-state=sent]:has-text('supper')");
    await bob.misses("article:has-text('supper') .mention");
    // What called everybody goes on doing so through an edit.
    await edit(bob, "@all, dinner at eight");
    await alice.sees("article:has-text('dinner at eight') .mention:text-is('@all')");
    await api("PATCH", "/v1/conversations/demo", { mention_all: "admins" });
    await alice.sees(".notice:has-text('Only the owner and the admins may mention @all')");
  }],
  ["an edit that adds a mention is counted, and one that takes it away is not", async () => {
    const { alice, bob } = people;
    await bob.choose("Carol");
    await alice.write("who has the key?");
    await bob.sees(`${badge("Demo")}:has-text('1')`);
    await bob.misses(CALLED);
    await alice.sees("article[data-state=sent]:has-text('who has the key')");
    await edit(alice, "who has the key, @Bob?");
    await alice.sees("article:has-text('the key') .mention:text-is('@Bob')");
    await bob.sees(CALLED);
    await edit(alice, "who has the key, Carol?");
    await bob.misses(CALLED);
    await bob.sees(`${badge("Demo")}:has-text('1')`);
    await bob.choose("Demo");
    await bob.misses(badge("Demo"));
  }],
  ["a longer word that begins like a name calls nobody", async () => {
    const { alice, bob } = people;
    await alice.write("@allison, me@all.example and @Bobby, but @Carol.");
    await bob.sees("article:has-text('allison') .mention");
    const called = await alice.message("allison").locator(".mention").allTextContents();
    assert(JSON.stringify(called) === '["@Carol"]', called);
  }],
];
