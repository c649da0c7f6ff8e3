// A user with more conversations than the list loads at first: what is behind them is counted, found, opened and read.
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import { version } from "../../harness/browser.mjs";
import { Window, api, badge, browser, complaints, line, say } from "../../harness/page.mjs";

const PEOPLE = 120;

/** Bob has been written to by many people, since somebody wrote in the old house. */
async function seed() {
  const users = Array.from({ length: PEOPLE }, (_, n) => ({ id: `p${n}`, name: `Person ${n}` }));
  await api("PUT", "/v1/users", { users });
  await api("POST", "/v1/conversations", { id: "house", kind: "group", name: "The old house", owner: "alice", members: ["bob", "p0", "p1"], receipts: "members" });
  await say("house", "alice", "Who has the key?");
  for (const { id } of users) await api("POST", "/v1/messages", { to: "bob", from: id, body: { text: `hello from ${id}` } });
}

let bob;
const asked = [];
const total = async () => (await api("GET", "/v1/users/bob/unread")).unread;
const title = () => bob.page.title();

await seed();
const failed = await run(`a list of ${PEOPLE} conversations in ${version()}`, [
  ["the title counts what is not loaded, too", async () => {
    bob = await Window.open("bob");
    bob.page.on("request", (request) => asked.push(`${request.method()} ${new URL(request.url()).pathname}`));
    const unread = await total();
    assert(unread > 100, unread);
    await bob.until((text) => document.title.startsWith(text), `(${unread}) `);
    assert((await bob.page.locator(".line").count()) < unread, "all are loaded");
  }],
  ["names come with the page, or are asked for together", async () => {
    await bob.page.reload();
    await bob.sees(line(`Person ${PEOPLE - 1}`));
    await bob.sees(line("Person 30"));
    const names = asked.filter((request) => request.includes("/v1/users/") && !request.includes("/me/"));
    assert(names.length <= 4 && names.every((request) => request === "POST /v1/users/query"), names);
  }],
  ["the search finds what is not loaded", async () => {
    await bob.misses(line("The old house"));
    await bob.page.fill("input[type=search]", "old HOUSE");
    await bob.sees(line("The old house"));
    await bob.sees(badge("The old house"));
  }],
  ["a link leads to a conversation that is not loaded, with its name and its members", async () => {
    await bob.page.goto("about:blank");
    await bob.page.goto(`http://${bob.network.address}/?user=bob#house`);
    await bob.sees(".chat-title h2:has-text('The old house')");
    await bob.sees(".chat-title p:has-text('4 members')");
    await bob.waitForTexts(["Who has the key?"]);
  }],
  ["who has read a message is seen after the page was loaded anew", async () => {
    await bob.write("I have");
    // The page shows the message before the server has it.
    let entries;
    do ({ entries } = await api("GET", "/v1/conversations/house/messages?limit=1"));
    while (entries[0].body?.text !== "I have");
    for (const user of ["alice", "p0", "p1"]) await api("PUT", `/v1/users/${user}/conversations/house/read`, { seq: entries[0].seq });
    await bob.sees(".message-state.is-read");
    await bob.page.reload();
    await bob.sees("article:has-text('I have') .message-state.is-read");
  }],
  ["another name is seen without a reload", async () => {
    await bob.sees(line(`Person ${PEOPLE - 1}`));
    await api("PUT", "/v1/users", { users: [{ id: `p${PEOPLE - 1}`, name: "Somebody else" }] });
    await bob.sees(line("Somebody else"));
  }],
  ["all is read by one click, also what is not loaded", async () => {
    await bob.page.getByRole("button", { name: "Unread" }).click();
    await bob.page.getByRole("button", { name: "Mark all as read" }).click();
    await bob.until(() => document.title.startsWith("Bob"));
    assert((await total()) === 0, await title());
  }],
  ["the page did not fail, nor wanted what its policy forbids", async () => assert(complaints.length === 0, complaints.join("\n"))],
]);
await browser.close();
process.exit(failed);
