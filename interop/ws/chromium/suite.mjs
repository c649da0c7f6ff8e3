// The WebSocket listener with Chromium: the cases of harness/session.mjs run in a page of another origin.
import { fileURLToPath } from "node:url";
import { launch, proxy, serve, version } from "../../harness/browser.mjs";
import { run } from "../../harness/tap.mjs";

const { TIDINGS_WS, SUITE, TOKEN_ADA, TOKEN_BEN, TOKEN_CY } = process.env;
const file = (path) => fileURLToPath(new URL(path, import.meta.url));
const between = await proxy(() => new URL(TIDINGS_WS).host);
const pages = await serve({ "/": file("page.html"), "/session.mjs": file("../../harness/session.mjs") });
const browser = await launch();
const page = await browser.newPage();
page.on("console", (message) => console.log(`# ${message.text()}`));
await page.exposeFunction("newestConnection", between.newest);
await page.exposeFunction("cutConnection", between.cut);
await page.goto(pages.origin);
await page.waitForFunction(() => window.isReady);
const people = { name: SUITE, ada: TOKEN_ADA, ben: TOKEN_BEN, cy: TOKEN_CY };
const url = `ws://${between.address}/v1/connect`;
const titles = await page.evaluate(([url, people]) => window.prepare(url, people), [url, people]);
const failed = await run(version(), titles.map((title, number) => [title, async () => {
  const why = await page.evaluate((number) => window.check(number), number);
  if (why) throw new Error(why);
}]));
await browser.close();
between.end();
pages.end();
process.exit(failed);
