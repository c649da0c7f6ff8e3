// The console in Chromium, as an operator uses it: each page, a node that goes away, keys alone, and what hostile people wrote.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import { HELPER, HOSTILE, KEY, answer, api, browser, card, complaints, device, go, helper, network, open, people, signIn, token, until } from "./console.mjs";
import { computing } from "./figures.mjs";

const AXE = readFileSync(fileURLToPath(new URL("../../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const SECRETS = [...JSON.parse(process.env.SECRETS), KEY, process.env.TIDINGS_TOKEN_KEY];
const ROUTES = ["live", "users", "users/alice", "conversations", "conversations/team", "popups", "popups/new", "popups/one/sale", "popups/explain", "bulk-sends", "notifications", "notifications/policy", "consumers", "outboxes", "pushes", "journeys", "journeys/new", "journeys/one/welcome", "segments", "presence", "settings", "keys", "reports", "changes"];

let page;
const say = (from, text, more = {}) => api("POST", "/v1/messages", { conversation: "team", from, body: { text }, ...more });

async function findings(tab) {
  await tab.evaluate(AXE);
  const { violations } = await tab.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html.slice(0, 160)} ${failureSummary}`).slice(0, 3).join(" | ")}`);
}

await people();
const devices = await Promise.all([device("alice", "phone"), device("alice", "tablet"), device("bob", "phone")]);

const failed = await run(`the console in ${version()}`, [
  ...computing,
  ["a wrong key, and a user's token, are refused in words; the right key stays in this tab alone", async () => {
    page = await open({ isSignedIn: false });
    const loaded = await page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname));
    assert(loaded.every((path) => path.startsWith("/console/")), loaded);
    await signIn(page, "not-the-key");
    await page.getByRole("alert").getByText("does not accept this key").waitFor();
    await signIn(page, await token("alice"));
    await page.getByRole("alert").getByText("This is a user's token").waitFor();
    await signIn(page);
    const kept = await page.evaluate(() => ({ local: { ...localStorage }, session: { ...sessionStorage }, address: location.href, cookie: document.cookie }));
    assert(JSON.stringify(kept.session).includes(KEY) && !JSON.stringify([kept.local, kept.address, kept.cookie]).includes(KEY), kept);
    const other = await open({ isSignedIn: false });
    assert(await other.getByLabel("API key").isVisible(), "another tab is signed in");
    await other.context().close();
  }],
  ["the live view counts messages and draws them", async () => {
    await page.getByRole("figure").first().waitFor();
    for (let n = 0; n < 20; n++) await say("bob", `message ${n}`);
    const legend = page.getByRole("figure").filter({ hasText: "Messages out, per second" });
    // As the newest reading has it, or as one before it had it: then it stands in the plot's scale.
    await until("a rate of messages", async () => Number(await page.locator(".tile", { hasText: "Messages out" }).locator("strong").innerText().then((text) => text.replace("/s", ""))) > 0 || say("bob", "more").then(() => false));
    assert((await legend.locator("canvas").count()) === 1 && (await page.locator(".plot canvas").count()) === 8, "eight plots");
    assert((await page.locator(".tile", { hasText: "Connections" }).innerText()).includes(`${devices.length}`), "connections");
    await card(page, "Nodes").getByText("core").waitFor();
  }],
  ["the live view shows what the hook answers", async () => {
    const body = JSON.stringify({ conversation: "team", body: { text: "is anybody asked?" } });
    const headers = { authorization: `Bearer ${await token("bob")}`, "content-type": "application/json" };
    const sent = await fetch(`${process.env.TIDINGS_URL}/v1/messages`, { method: "POST", headers, body });
    assert(sent.status === 403 && (await sent.json()).reason === "spam", "the hook was not asked");
    await card(page, "Hook").getByRole("row", { name: "Refused" }).getByText("1", { exact: true }).waitFor();
  }],
  ["lists users and conversations, narrowed, in the order of their ids", async () => {
    const shown = async (label) => (await page.getByRole("region", { name: label, exact: true }).getByRole("row").allInnerTexts()).slice(1).map((row) => row.split("\t")[0].trim());
    const narrowed = (label, ids) => until(`${ids} in ${label}`, async () => JSON.stringify(await shown(label)) === JSON.stringify(ids));
    await go(page, "users");
    await narrowed("All users", ["alice", "bob", "carol", "mallory"]);
    const apply = (title) => card(page, title).getByRole("button", { name: "Apply" }).click();
    await page.getByLabel("Name begins with").fill("c");
    await apply("All users");
    await narrowed("All users", ["carol"]);
    await page.getByLabel("Name begins with").fill("");
    await page.getByLabel("Attribute").fill("country:DE");
    await apply("All users");
    await narrowed("All users", ["alice"]);
    await page.getByLabel("Attribute").fill("country");
    await apply("All users");
    await page.getByRole("alert").getByText("attribute").waitFor();
    await go(page, "conversations");
    await narrowed("All conversations", ["team"]);
    await page.getByLabel("Kind").selectOption("official");
    await apply("All conversations");
    await page.getByText("No conversation on this page.").waitFor();
    await page.getByLabel("Kind").selectOption("group");
    await page.getByLabel("Has the member").fill("bob");
    await apply("All conversations");
    await narrowed("All conversations", ["team"]);
    await page.getByRole("link", { name: "team" }).click();
    await page.getByRole("heading", { name: "Team" }).waitFor();
  }],
  ["finds a user: devices, sessions, unread; and disconnects one device after a question", async () => {
    await page.getByRole("link", { name: "Users" }).click();
    await page.getByLabel("A user's id").fill("nobody-of-this-name");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("There is no user with this id").waitFor();
    await page.getByLabel("A user's id").fill("alice");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByRole("heading", { name: "Alice Novak" }).waitFor();
    for (const name of ["phone", "tablet"]) {
      await card(page, "Sessions").getByRole("row", { name }).getByText("yes").waitFor();
      await card(page, "Devices").getByRole("row", { name }).getByText("online").waitFor();
    }
    await card(page, "Conversations").getByRole("row", { name: "Team" }).getByText(/^\d\d$/u).waitFor();
    const ended = new Promise((resolve) => devices[1].on("close", resolve));
    const row = card(page, "Sessions").getByRole("row", { name: "tablet" });
    await row.getByRole("button", { name: "Disconnect…" }).click();
    await answer(page, "Cancel");
    assert(devices[1].readyState === 1, "it was disconnected without an answer");
    await row.getByRole("button", { name: "Disconnect…" }).click();
    const question = await answer(page, "Disconnect");
    assert(question.includes("tablet") && question.includes("alice"), question);
    await ended;
    // The page asked as soon as the server had answered, which may have been before the shard ended the session.
    await card(page, "Sessions").getByRole("button", { name: "Load again" }).click();
    await row.waitFor({ state: "detached" });
  }],
  ["says why a message did not reach a user", async () => {
    await api("PUT", "/v1/users/carol/conversations/team/mute", { muted: true });
    const { seq } = await say("alice", "who has not seen this?");
    await go(page, "users/carol");
    await page.getByLabel("Conversation", { exact: true }).fill("team");
    await page.getByLabel("Message number").fill(String(seq));
    await page.getByRole("button", { name: "Look" }).click();
    const told = async () => (await api("GET", `/v1/conversations/team/messages/${seq}/notifications?user=carol`)).summary;
    const looked = async () => {
      await page.getByRole("button", { name: "Look" }).click();
      const finding = page.locator(".finding").first();
      await finding.waitFor();
      return finding.innerText();
    };
    await until("the server's account", async () => (await told()).includes("muted"));
    assert((await looked()) === (await told()), "the page has an account of its own");
    await page.getByRole("region", { name: "Steps" }).getByText("muted").first().waitFor();
    await api("POST", "/v1/conversations/team/members", { remove: ["carol"] });
    await until("another account", async () => (await looked()) === (await told()));
    await page.getByLabel("Message number").fill("999999");
    await page.getByRole("button", { name: "Look" }).click();
    await page.getByRole("alert").getByText("999999").waitFor();
  }],
  ["a history shows edits, reactions, receipts and recalls; what people wrote is only text", async () => {
    const { seq: edited } = await say("bob", "the first text");
    const { seq: called } = await say("alice", "all of you", { mentions: ["@all", "bob"] });
    await api("PATCH", `/v1/conversations/team/messages/${edited}`, { from: "bob", body: { text: "the second text" } });
    await api("PUT", `/v1/conversations/team/messages/${edited}/reactions/${encodeURIComponent("👍")}?user=alice`);
    await say("mallory", HOSTILE);
    await say("mallory", `${"w".repeat(60_000)}`);
    const { seq: doomed } = await say("bob", "to be taken back");
    await go(page, "conversations/team");
    const entry = (number) => page.locator(".entry").filter({ has: page.locator(".entry-seq", { hasText: new RegExp(`^${number}$`, "u") }) });
    await entry(edited).getByText("the second text").waitFor();
    await entry(edited).getByRole("listitem").getByText("👍").waitFor();
    await entry(edited).getByRole("button", { name: "Versions" }).click();
    await entry(edited).getByText("the first text").waitFor();
    await entry(edited).getByRole("button", { name: "Receipts" }).click();
    await entry(edited).getByText(/Of \d members/u).waitFor();
    await entry(called).getByText("mentions @all, bob").waitFor();
    await page.locator(".entry-body").getByText(HOSTILE, { exact: true }).waitFor();
    await entry(doomed).getByRole("button", { name: "Take back…" }).click();
    const question = await answer(page, "Take it back");
    assert(question.includes("cannot be undone") && question.includes("bob"), question);
    await entry(doomed).getByText("recalled by").waitFor();
    await go(page, "users/mallory");
    await page.getByRole("heading", { name: HOSTILE }).waitFor();
    assert((await page.$$("main img, main script, main iframe")).length === 0, "a name became markup");
    const isWide = await page.evaluate(() => document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth);
    assert(!isWide, "a body made the page wider");
  }],
  ["a conversation's settings are shown, and changed after a question that says what changes", async () => {
    await go(page, "conversations/team");
    const settings = card(page, "Settings");
    const [mentionAll, history, entries] = ["Who may mention @all", "What members read from before they joined", "Entries from before"].map((label) => settings.getByLabel(label, { exact: true }));
    const button = settings.getByRole("button", { name: "Change…" });
    const now = async () => {
      const { receipts, history, mention_all } = await api("GET", "/v1/conversations/team");
      return JSON.stringify({ receipts, history, mention_all });
    };
    const before = await now();
    assert((await mentionAll.inputValue()) === "admins" && (await settings.getByLabel("What members learn of receipts").inputValue()) === "members", before);
    assert(await button.isDisabled(), "there is nothing to change");
    await mentionAll.selectOption("nobody");
    await history.selectOption("last");
    await entries.fill("-1");
    await settings.getByText("A whole number of entries.").waitFor();
    assert(await button.isDisabled(), "a mistake is sent");
    await entries.fill("20");
    await button.click();
    await answer(page, "Cancel");
    assert((await now()) === before, "changed without an answer");
    await button.click();
    const question = await answer(page, "Change");
    assert(question.includes("nobody but app servers") && question.includes("at most 20 entries") && !question.includes("receipts"), question);
    await settings.getByText("The settings are changed.").waitFor();
    assert((await now()) === '{"receipts":"members","history":{"last":20},"mention_all":"nobody"}', await now());
    await until("nothing is left to change", () => button.isDisabled());
    await api("PATCH", "/v1/conversations/team", { history: "all", mention_all: "admins" });
    await api("POST", "/v1/messages", { from: "alice", to: "bob", body: { text: "hello" } });
    await go(page, "conversations/alice~bob");
    await settings.getByLabel("What members learn of receipts").waitFor();
    assert((await mentionAll.count()) === 0 && (await history.count()) === 0, "of a direct conversation");
  }],
  ["creates a popup: the mistake is shown at its field, and what becomes of the popup shows", async () => {
    await page.getByRole("link", { name: "Popups" }).click();
    await page.getByRole("link", { name: "New popup" }).click();
    await page.getByLabel("Id", { exact: true }).fill("sale");
    await page.getByLabel("Placements").fill("home");
    await page.getByLabel("State").selectOption("live");
    await page.getByLabel("Title").fill("Everything green");
    await page.locator(".preview").getByText("Everything green").waitFor();
    await page.getByText("Audience, trigger, windows and test users").click();
    await page.getByLabel("Audience").fill('{"attribute": "country", "op": "equals", "value": "DE"}');
    await page.getByRole("button", { name: "Create" }).click();
    assert((await answer(page, "Go live")).includes("at home"), "the question names no placement");
    await page.locator(".field.is-wrong", { hasText: "unknown operator" }).waitFor();
    assert((await page.getByLabel("Audience").getAttribute("aria-invalid")) === "true", "the field is not marked");
    await page.getByLabel("Audience").fill('{"attribute": "country", "op": "eq", "value": "DE"}');
    await page.getByRole("button", { name: "Create" }).click();
    await answer(page, "Go live");
    await page.getByRole("heading", { name: "Results" }).waitFor();
    const events = [];
    for (let n = 0; n < 10; n++) {
      const { decision } = await api("POST", "/v1/popups/decide", { user: `visitor-${n}`, placement: "home", attributes: { country: "DE" } });
      events.push({ id: `seen-${n}`, decision, type: "impression" }, ...(n < 3 ? [{ id: `clicked-${n}`, decision, type: "click" }] : []));
    }
    await api("POST", "/v1/popup-events", { events });
    const row = card(page, "Results").getByRole("row", { name: /^a /u });
    await until("the results", async () => {
      await card(page, "Results").getByRole("button", { name: "Load again" }).click();
      return (await row.innerText().catch(() => "")).replace(/\s+/gu, " ").startsWith("a 10 10 3 ");
    });
    assert((await api("GET", "/v1/popups/sale")).updated_by === "Ōta Jürgen", "the version names its author");
    await page.getByLabel("Most per day").fill("2");
    await page.getByRole("button", { name: "Save" }).click();
    await card(page, "Versions").getByRole("row", { name: /^2 /u }).waitFor();
    await page.getByLabel("Conversion", { exact: true }).fill('{"event": "purchase", "within": "7d", "value": "total"}');
    await page.getByLabel("Control group, %").fill("50");
    await page.getByRole("button", { name: "Save" }).click();
    const lift = card(page, "Lift");
    await lift.getByText("purchase").waitFor();
    const purchases = [];
    for (let n = 0; n < 40; n++) {
      const user = `buyer-${n}`;
      const shown = await api("POST", "/v1/popups/decide", { user, placement: "home", attributes: { country: "DE" } });
      if (n % (shown === undefined ? 4 : 2) === 0) purchases.push({ id: `bought-${n}`, type: "custom", user, name: "purchase", properties: { total: 10 } });
    }
    await api("POST", "/v1/popup-events", { events: purchases });
    await until("the lift", async () => {
      await lift.getByRole("button", { name: "Load again" }).click();
      const compared = await lift.getByRole("row", { name: /Control group/u }).first().innerText().catch(() => "");
      return /Control group\s+\d\d?\s/u.test(compared);
    });
    await lift.getByRole("row", { name: /95 % interval/u }).waitFor();
    const measured = await api("GET", "/v1/popups/sale/lift");
    assert(measured.groups.reduce((sum, { people }) => sum + people, 0) === 40 && measured.lifts.length === 1, measured);
    const downloaded = page.waitForEvent("download");
    await lift.getByRole("button", { name: "Users as CSV" }).click();
    assert((await downloaded).suggestedFilename() === "sale-assignments.csv", "the export has its name");
    await go(page, "popups/explain?user=visitor-0&placement=home");
    await page.getByRole("button", { name: "Explain", exact: true }).click();
    await card(page, "Answer").getByText("audience").waitFor();
  }],
  ["a push is estimated, sent after a question that counts its devices, and followed", async () => {
    await go(page, "pushes");
    await page.getByRole("button", { name: "Send…" }).click();
    await page.locator(".field.is-wrong", { hasText: "Name at least one user" }).waitFor();
    await page.getByLabel("Users", { exact: true }).fill("alice, bob");
    await page.getByRole("button", { name: "Estimate" }).click();
    await page.getByText("This would reach 3 devices, 2 of them connected now.").waitFor();
    await page.getByRole("button", { name: "Send…" }).click();
    const question = await answer(page, "Send the push");
    assert(question.includes("3 devices"), question);
    await page.getByRole("heading", { name: /^Push \d+$/u }).waitFor();
    await until("two acknowledgements", async () => (await card(page, "Progress").innerText()).includes("2 (66.7 %)"));
    await card(page, "Progress").getByRole("button", { name: "Cancel the push…" }).click();
    assert((await answer(page, "Cancel the push")).includes("(1 device)"), "the question counts");
    await card(page, "Progress").getByText("cancelled", { exact: true }).waitFor();
  }],
  ["shows who follows the feed of events, and why a webhook gets nothing", async () => {
    await api("PUT", "/v1/event-consumers/search", { after: "start", webhook: { url: "http://127.0.0.1:9/nobody" } });
    await api("PUT", "/v1/event-consumers/bot", { types: ["entry.message"] });
    await go(page, "consumers");
    const row = (name) => card(page, "All consumers").getByRole("row").filter({ hasText: name });
    await row("search").getByText("waiting").waitFor();
    await row("search").locator(".failure").waitFor();
    await row("bot").getByText("reads its events").waitFor();
    await row("bot").getByRole("button", { name: "Restart" }).click();
    await answer(page, "Restart");
    await row("search").getByRole("button", { name: "Delete" }).click();
    await answer(page, "Delete the consumer");
    await row("search").waitFor({ state: "detached" });
  }],
  ["presence is compared", async () => {
    await go(page, "presence");
    await page.getByRole("button", { name: "Compare now" }).click();
    await page.getByText("The registry agrees with the connections.").waitFor();
  }],
  ["a dead letter tells its cause, and is replayed once the webhook takes again", async () => {
    await go(page, "notifications");
    await card(page, "Dead letters").getByRole("button", { name: "Webhook", exact: true }).click();
    const row = card(page, "Dead letters").getByRole("row").filter({ hasText: "500" }).first();
    await until("a dead letter", async () => {
      await card(page, "Dead letters").getByRole("button", { name: "Load again" }).click();
      return row.isVisible();
    });
    const givenUp = async () => (await api("GET", "/v1/notifications/dead-letters?channel=webhook")).dead_letters;
    const before = await givenUp();
    await helper("take");
    await row.getByRole("button", { name: /Replay dead letter/u }).click();
    const question = await answer(page, "Replay");
    assert(question.includes(`dead letter ${before[0].id}`), question);
    await page.getByText("Tried again: 1 notification.").waitFor();
    await until("the notification", async () => (await helper("look")).taken.some(({ id }) => id === before[0].event.id));
    await until("one dead letter less", async () => !(await givenUp()).some(({ id }) => id === before[0].id));
  }],
  ["a dead letter is deleted for good after a question", async () => {
    await helper("refuse");
    await say("alice", "nobody is notified of this");
    const letters = async () => (await api("GET", "/v1/notifications/dead-letters")).dead_letters;
    const [letter] = await until("a dead letter", async () => (await letters()).length > 0 && letters());
    await go(page, "users");
    await go(page, "notifications");
    await page.getByRole("button", { name: `Delete dead letter ${letter.id}`, exact: true }).click();
    assert((await answer(page, "Delete")).includes("cannot be undone"), "the question");
    await page.getByText("Deleted: 1 dead letter.").waitFor();
    assert(!(await letters()).some(({ id }) => id === letter.id), "it is still there");
    await card(page, "Channels").getByRole("row", { name: "webhook" }).waitFor();
  }],
  ["the policy is shown, changed, refused in the server's words, and removed", async () => {
    const stored = () => api("GET", "/v1/notifications/policy");
    await go(page, "notifications/policy");
    await card(page, "Rules").getByText("the default, from the settings").waitFor();
    const field = page.getByLabel("As the API takes it");
    const save = async (policy) => {
      await field.fill(JSON.stringify(policy));
      await page.getByRole("button", { name: "Put in force…" }).click();
      await answer(page, "Put in force");
    };
    await save({ rules: [{ id: "only", channels: [{ channel: "pigeon" }] }] });
    await page.locator(".mistake", { hasText: "pigeon" }).waitFor();
    await save({ rules: [{ id: "only-the-webhook", channels: [{ channel: "session" }, { channel: "webhook", after_s: 90 }] }] });
    await page.getByText("In force as version 1.").waitFor();
    await card(page, "Rules").getByRole("row", { name: "only-the-webhook" }).getByText("webhook after 1 min 30 s").waitFor();
    assert((await stored()).updated_by === "Ōta Jürgen", await stored());
    // Somebody else's change in between.
    await api("PUT", "/v1/notifications/policy", { rules: [{ id: "of-another", channels: [{ channel: "session" }] }] });
    await save({ rules: [] });
    await page.getByRole("alert").getByText("Somebody else has changed it").waitFor();
    await go(page, "notifications");
    await go(page, "notifications/policy");
    await card(page, "Rules").getByRole("row", { name: "of-another" }).waitFor();
    await page.getByRole("button", { name: "Remove…" }).click();
    await answer(page, "Remove the policy");
    await card(page, "Rules").getByText("the default, from the settings").waitFor();
    await card(page, "Versions").getByRole("row", { name: "removed" }).waitFor();
  }],
  ["a journey is made, set to live, and shows how far users have come", async () => {
    await go(page, "journeys/new");
    await page.getByLabel("Id", { exact: true }).fill("welcome");
    const spec = { name: "Welcome", state: "paused", entry: { event: "signed_up" }, steps: [{ id: "later", type: "wait", for: "1d" }, { id: "hello", type: "push", push: { type: "offer", body: { text: "Hello" } } }] };
    await page.getByLabel("As the API takes it").fill(JSON.stringify({ ...spec, steps: [{ id: "hello", type: "dance" }] }));
    await page.getByRole("button", { name: "Create" }).click();
    await page.locator(".mistake", { hasText: "dance" }).waitFor();
    await page.getByLabel("As the API takes it").fill(JSON.stringify(spec));
    await page.getByRole("button", { name: "Create" }).click();
    await page.getByRole("heading", { name: "Welcome paused" }).waitFor();
    await page.getByRole("button", { name: "Set to live…" }).click();
    assert((await answer(page, "Set to live")).includes("users enter it"), "the question");
    await page.getByRole("heading", { name: "Welcome live" }).waitFor();
    await api("POST", "/v1/popup-events", { events: [{ id: "signed-up-1", user: "bob", type: "custom", name: "signed_up" }] });
    await until("bob in the journey", async () => {
      await card(page, "Steps").getByRole("button", { name: "Load again" }).click();
      return card(page, "Steps").getByRole("row", { name: /^later 2 1 0 / }).isVisible();
    });
    await go(page, "journeys");
    await page.getByRole("row", { name: /Welcome.*live.*signed_up/u }).waitFor();
  }],
  ["segments, bulk sends and push tokens", async () => {
    await api("PUT", "/v1/popup-segments/churned", "bob\nmallory\n");
    await go(page, "segments");
    await page.getByRole("row", { name: /^churned 2 / }).waitFor();
    await page.getByLabel("Segment", { exact: true }).fill("churned");
    await page.getByLabel("User", { exact: true }).fill("bob");
    await page.getByRole("button", { name: "Look" }).click();
    await page.getByText("bob is in churned.").waitFor();
    await page.getByLabel("User", { exact: true }).fill("alice");
    await page.getByRole("button", { name: "Look" }).click();
    await page.getByText("alice is not in churned").waitFor();
    await api("PUT", "/v1/users", { users: [{ id: "news", name: "News" }] });
    await api("POST", "/v1/conversations", { id: "news", kind: "official", name: "News", members: ["bob", "mallory"] });
    await api("POST", "/v1/bulk-sends", { client_bulk_id: "moved-1", account: "news", to: { segment: "churned" }, message: { body: { text: "We have moved" } } });
    await go(page, "bulk-sends");
    await until("the send", () => page.getByRole("row", { name: /moved-1 News|moved-1 news/u }).filter({ hasText: "done" }).isVisible());
    // The receiver of the example in RFC 8291.
    const keys = { p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", auth: "BTBZMqHH6r4Tts7J_aSIgg" };
    await api("PUT", "/v1/users/bob/devices/phone/push_token", { provider: "web_push", subscription: { endpoint: `${HELPER}/nobody`, keys } });
    await go(page, "users/bob");
    const tokens = card(page, "Push tokens");
    await tokens.getByRole("row", { name: /^phone web push/u }).getByRole("button", { name: "Remove…" }).click();
    await answer(page, "Remove the token");
    await tokens.getByText("No app of this user has registered").waitFor();
    assert((await api("GET", "/v1/users/bob/push_tokens")).push_tokens.length === 0, "the token is still there");
  }],
  ["each change has a line in the tab's own log, and in the server's", async () => {
    await go(page, "changes");
    for (const what of ["Disconnect the device tablet of alice", "Create popup sale", "Replay dead letter", "Take back message"]) await page.getByRole("row", { name: what }).first().waitFor();
    assert((await page.getByRole("row", { name: "Create popup sale" }).filter({ hasText: "refused" }).count()) === 1, "the refused try");
    const { log } = await helper("look");
    const lines = log.split("\n").filter((line) => line.includes("audit: "));
    for (const [method, path] of [["POST", "/v1/users/alice/kick"], ["PATCH", "/v1/conversations/team"], ["PUT", "/v1/popups/sale"], ["POST", "/v1/notifications/dead-letters/replay"], ["POST", "/v1/push"]]) {
      const line = lines.find((one) => one.includes(`method=${method} path="${path}"`) && one.includes("done"));
      assert(line?.includes('author="Ōta Jürgen"'), `${method} ${path}: ${lines.join("\n")}`);
    }
    assert(lines.every((line) => !line.includes("explain") && !line.includes("compare") && !line.includes(KEY)), lines);
  }],
  ["settings name their source, and no secret is shown", async () => {
    const answers = [];
    page.on("response", (response) => response.url().includes("/v1/admin/settings") && answers.push(response.text()));
    await go(page, "settings");
    await page.getByRole("row", { name: /^webhook\.secret / }).getByText("set, not shown").waitFor();
    await page.getByRole("row", { name: /^webhook\.attempts_max / }).getByText("environment").waitFor();
    await page.getByRole("row", { name: /^webhook\.timeout_ms / }).getByText("default", { exact: true }).waitFor();
    const shown = (await page.evaluate(() => document.documentElement.outerHTML)) + (await Promise.all(answers)).join("");
    for (const secret of SECRETS) assert(!shown.includes(secret), `${secret} is shown`);
    await page.getByLabel("Find a setting").fill("heartbeat");
    await page.getByRole("row", { name: /^webhook\./u }).first().waitFor({ state: "detached" });
  }],
  ["two lab reports are compared, and another file is refused in words", async () => {
    const report = (p99, rate) => JSON.stringify({ bench: "group", members: 300, outcome: { lost: 0, deliveries_per_second: rate, latency: { p50: 2, p90: 4, p99, p99_9: 30, p99_99: 40, max: 50 }, rounds: [3, 4, p99], problems: [] } });
    const file = (name, text) => {
      writeFileSync(join(process.env.INTEROP_TMP, name), text);
      return join(process.env.INTEROP_TMP, name);
    };
    await go(page, "reports");
    await page.setInputFiles("input[type=file]", file("settings.json", '{"a": 1}'));
    await page.getByRole("alert").getByText("settings.json is no report").waitFor();
    await page.setInputFiles("input[type=file]", [file("before.json", report(20, 1000)), file("after.json", report(10, 1500))]);
    const row = page.getByRole("row", { name: /outcome\.latency\.p99 / });
    assert((await row.innerText()).includes("−50.0 %") && (await row.locator(".better").count()) === 1, await row.innerText());
    assert((await page.getByRole("row", { name: /deliveries_per_second/u }).innerText()).includes("+50.0 %"), "the rate");
  }],
  ["makes an API key, whose secret is shown once; a tab with that key offers what the key may do, until it is revoked", async () => {
    await go(page, "keys");
    await card(page, "Your key").getByText("the key of the settings").waitFor();
    const form = card(page, "Make a key");
    await form.getByLabel("Name", { exact: true }).fill(HOSTILE);
    for (const scope of ["read", "popups"]) await form.getByRole("checkbox", { name: new RegExp(`^${scope} `, "u") }).check();
    await form.getByRole("button", { name: "Make the key" }).click();
    const secret = await page.locator("code.secret").innerText();
    assert(/^tidings_[0-9a-f]{64}$/u.test(secret), secret);
    await page.getByRole("button", { name: "I have kept it" }).click();
    assert(!(await page.content()).includes(secret), "the secret is still shown");
    const row = card(page, "All keys").getByRole("row").filter({ hasText: "fdp.exe" });
    await row.getByText("never").first().waitFor();

    const tab = await open({ isSignedIn: false });
    await signIn(tab, secret);
    await tab.waitForSelector(".frame");
    const places = await tab.getByRole("navigation", { name: "Pages" }).getByRole("link").allInnerTexts();
    assert(places.join() === "Live,Conversations,Bulk sends,Notifications,Event consumers,Outboxes,Popups,Journeys,Segments,API keys,Lab reports,Your changes", places);
    await go(tab, "settings");
    await tab.getByText("it needs the scope admin").waitFor();
    await go(tab, "keys");
    const allowed = async (scope) => card(tab, "Your key").getByRole("row", { name: scope }).locator(".badge").innerText();
    assert((await allowed("popups")) === "allowed" && (await allowed("admin")) === "not allowed", "what the key may do");
    await go(tab, "notifications");
    await tab.getByRole("button", { name: "Replay all…" }).waitFor();
    assert(await tab.getByRole("button", { name: "Replay all…" }).isDisabled(), "a change that needs admin is offered");

    await row.getByRole("button", { name: "Rotate" }).click();
    await answer(page, "Rotate");
    const next = await page.locator("code.secret").innerText();
    assert(next !== secret, "the same secret");
    await row.getByText("former secret until").waitFor();
    await row.getByRole("button", { name: "Revoke" }).click();
    await answer(page, "Revoke the key");
    await row.waitFor({ state: "detached" });
    await card(page, "Audit log").getByRole("row", { name: "DELETE /v1/admin/keys/{key}" }).first().waitFor();
    // Whichever request of the tab is the first to be refused leads back to the sign-in.
    await tab.evaluate(() => void (location.hash = "#/popups"));
    await tab.getByRole("alert").getByText("no longer accepts the key").waitFor();
    await tab.context().close();
  }],
  ["a node that shuts down: one banner, the page stays, and goes on when the node is back", async () => {
    await go(page, "users/bob");
    await page.getByRole("heading", { name: "Bob" }).waitFor();
    await helper("stop");
    await page.locator(".banner.is-away", { hasText: "does not answer" }).waitFor();
    for (const route of ["live", "popups", "notifications", "users/bob"]) await go(page, route);
    assert((await page.locator(".failure-box").count()) === 0, "a wall of errors");
    assert((await page.locator(".banner").count()) === 1, "one banner");
    await helper("start");
    await page.getByRole("button", { name: "Try now" }).click();
    await page.locator(".banner.is-back").waitFor();
    await page.getByRole("heading", { name: "Bob" }).waitFor();
    await page.locator(".banner").waitFor({ state: "detached" });
  }],
  ["by keys alone: signing in, a page, a question that Escape answers with no", async () => {
    const tab = await open({ isSignedIn: false });
    for (const text of ["Keys", KEY]) {
      await tab.keyboard.press("Tab");
      await tab.keyboard.type(text);
    }
    await tab.keyboard.press("Enter");
    await tab.waitForSelector(".frame");
    const press = async (key, isThere) => {
      for (let n = 0; !(await tab.evaluate(isThere)); n++) {
        assert(n < 60, `${isThere} is not reached`);
        await tab.keyboard.press(key);
      }
    };
    await press("Tab", () => document.activeElement.textContent === "Users");
    await tab.keyboard.press("Enter");
    await until("the heading has the focus", () => tab.evaluate(() => document.activeElement.tagName === "H1"));
    await press("Tab", () => document.activeElement.type === "search");
    await tab.keyboard.type("bob");
    await tab.keyboard.press("Enter");
    await tab.getByRole("button", { name: "Revoke tokens…" }).waitFor();
    await press("Tab", () => document.activeElement.textContent === "Revoke tokens…");
    await tab.keyboard.press("Enter");
    await tab.getByRole("dialog").waitFor();
    assert((await tab.evaluate(() => document.activeElement.textContent)) === "Cancel", "the answer that does nothing has the focus");
    await tab.keyboard.press("Escape");
    await tab.getByRole("dialog").waitFor({ state: "detached" });
    assert((await tab.evaluate(() => document.activeElement.textContent)) === "Revoke tokens…", "the focus is back");
    assert(!(await helper("look")).log.includes("/v1/users/bob/revoke"), "Escape revoked");
    await tab.context().close();
  }],
  ...["light", "dark"].map((colorScheme) => [`axe-core finds nothing serious on any page, in ${colorScheme}, wide and narrow`, async () => {
    const tab = await open({ isSignedIn: false, colorScheme });
    const found = (await findings(tab)).map((finding) => `sign-in: ${finding}`);
    await signIn(tab);
    for (const viewport of [{ width: 1360, height: 900 }, { width: 390, height: 844 }]) {
      await tab.setViewportSize(viewport);
      for (const route of ROUTES) {
        await go(tab, route);
        await tab.getByText("Loading…").first().waitFor({ state: "detached" });
        found.push(...(await findings(tab)).map((finding) => `${route} ${viewport.width}: ${finding}`));
        const wider = await tab.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth);
        assert(!wider, `${route} is wider than ${viewport.width}`);
      }
    }
    assert(found.length === 0, found.join("\n"));
    await tab.context().close();
  }]),
  ["a key that is no longer good leads back to the sign-in", async () => {
    await page.context().route("**/v1/popups?**", (route) => route.continue({ headers: { ...route.request().headers(), authorization: "Bearer gone" } }));
    await page.evaluate(() => void (location.hash = "#/popups"));
    await page.getByRole("alert").getByText("no longer accepts the key").waitFor();
    assert(!JSON.stringify(await page.evaluate(() => ({ ...sessionStorage }))).includes(KEY), "the key is kept");
  }],
  ["no page failed, nor wanted what its policy forbids", async () => assert(complaints.length === 0, complaints.join("\n"))],
]);
devices.forEach((socket) => socket.terminate());
network.end();
await browser.close();
process.exit(failed);
