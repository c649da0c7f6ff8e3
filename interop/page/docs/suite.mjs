// The page at /docs in Chromium, under its policy: it shows the API and calls it, asks no other host for anything, and nobody frames it.
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launch, serve, version } from "../../harness/browser.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const { TIDINGS_URL, TIDINGS_API_KEY } = process.env;
const WAIT_MS_MAX = 60_000;
const origin = new URL(TIDINGS_URL).origin;
const browser = await launch();
const complaints = [];
const asked = [];

async function open() {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(WAIT_MS_MAX);
  page.on("pageerror", (error) => complaints.push(error.stack));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("request", (request) => asked.push(request.url()));
  return page;
}

let page;
const failed = await run(`the description in ${version()}`, [
  ["the page shows the operations of the server", async () => {
    page = await open();
    await page.goto(`${origin}/docs/`);
    await page.getByText("/v1/users", { exact: true }).first().waitFor();
    assert((await page.locator(".opblock").count()) > 50, "few operations");
  }],
  ["a call with the key that is typed there is answered", async () => {
    await page.getByRole("button", { name: "Authorize" }).first().click();
    await page.locator(".auth-container input").fill(TIDINGS_API_KEY);
    await page.locator(".auth-container").getByRole("button", { name: "Apply credentials" }).or(page.locator(".auth-btn-wrapper .authorize")).first().click();
    await page.locator(".auth-btn-wrapper .btn-done").click();
    const operation = page.locator('.opblock:has([data-path="/v1/admin/settings"])').first();
    await operation.locator(".opblock-summary-control").click();
    await operation.getByRole("button", { name: "Try it out" }).click();
    const answered = page.waitForResponse((response) => response.url().includes("/v1/"));
    await operation.getByRole("button", { name: "Execute" }).click();
    const answer = await answered;
    assert(answer.request().headers().authorization === `Bearer ${TIDINGS_API_KEY}`, "the key is not sent");
    await operation.locator(".live-responses-table .response-col_status").first().waitFor();
  }],
  ["the policy stood in the way of nothing, and no other host was asked", async () => {
    const policy = complaints.filter((text) => /Content Security Policy|TypeError|ReferenceError/u.test(text));
    assert(policy.length === 0, policy.join("\n"));
    const others = asked.filter((url) => !url.startsWith(origin) && !url.startsWith("data:") && !url.startsWith("blob:"));
    assert(others.length === 0, others.join(" "));
  }],
  ["a page of another origin frames it in vain", async () => {
    const file = join(mkdtempSync(join(tmpdir(), "docs-frame-")), "page.html");
    writeFileSync(file, `<iframe src="${origin}/docs/index.html" width="800" height="600"></iframe>`);
    const other = await serve({ "/": file });
    const framing = await open();
    const refused = framing.waitForEvent("console", (message) => /frame-ancestors/u.test(message.text()));
    await framing.goto(other.origin);
    await refused;
    const frame = framing.frames().find((one) => one !== framing.mainFrame());
    assert((await frame.locator("#swagger-ui").count().catch(() => 0)) === 0, "the page is shown in a frame");
    other.end();
  }],
]);
await browser.close();
process.exit(failed);
