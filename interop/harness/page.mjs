// The chat page in Chromium, as its users see it: what its suites stand on.
import { launch, proxy } from "./browser.mjs";
import { assert } from "./session.mjs";

const { TIDINGS_URL, TIDINGS_API_KEY } = process.env;
const WAIT_MS_MAX = 60_000;

export const browser = await launch();
/** What no page may do: fail, or want what its policy forbids. */
export const complaints = [];

export async function api(method, path, body) {
  const headers = { authorization: `Bearer ${TIDINGS_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(TIDINGS_URL + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  assert(answer.ok, `${method} ${path}: ${answer.status} ${answer.ok ? "" : await answer.clone().text()}`);
  return answer.json();
}

export const say = (conversation, from, text, more = {}) => api("POST", "/v1/messages", { conversation, from, body: { text }, ...more });

/** A line of the list, and its count. */
export const line = (title) => `.line:has(.line-title:text-is("${title}"))`;
export const badge = (title) => `${line(title)} .badge:not(.is-mention)`;

/** A user's window behind a proxy of its own, which can be cut. */
export class Window {
  static async open(user, { hash = "", context, network, ...options } = {}) {
    const own = network ?? (await proxy(() => new URL(TIDINGS_URL).host));
    const where = context ?? (await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options }));
    const page = await where.newPage();
    page.setDefaultTimeout(WAIT_MS_MAX);
    const window = new Window();
    Object.assign(window, { user, page, context: where, network: own, isAway: false });
    page.on("pageerror", (error) => complaints.push(`${user}: ${error.stack}`));
    page.on("dialog", (dialog) => (complaints.push(`${user}: a dialog says ${dialog.message()}`), dialog.dismiss()));
    page.on("console", (message) => {
      // What a browser says of a broken connection is no complaint.
      if (message.type() === "error" && !/WebSocket|ERR_/u.test(message.text())) complaints.push(`${user}: ${message.text()}`);
    });
    await page.goto(`http://${own.address}/?user=${user}${hash}`);
    if (hash) await page.waitForSelector("textarea, .read-only");
    return window;
  }

  /** Offline as the browser says it, and as the network is. */
  async leave() {
    await this.context.setOffline(true);
    this.network.block();
    this.network.cutAll();
    await this.page.waitForSelector(".banner.is-away");
  }

  async comeBack() {
    this.network.unblock();
    await this.context.setOffline(false);
  }

  /** Opens a conversation of the list. Until the page has drawn it, the composer is that of the conversation before. */
  async choose(title) {
    await this.page.click(line(title));
    await this.sees(`main[aria-label="Conversation with ${title}"]`);
  }

  async write(text) {
    await this.page.fill("textarea", text);
    await this.page.press("textarea", "Enter");
  }

  message(text) {
    return this.page.locator("article", { hasText: text }).last();
  }

  async act(text, action) {
    await this.message(text).hover();
    await this.message(text).getByRole("button", { name: action, exact: true }).first().click();
  }

  async sees(selector) {
    await this.page.waitForSelector(selector);
  }

  async misses(selector) {
    await this.page.waitForSelector(selector, { state: "detached" });
  }

  /** Waits until a function in the page answers true. Playwright's own wait evaluates a text there, which the page's policy forbids. */
  async until(holds, given) {
    const end = performance.now() + WAIT_MS_MAX;
    while (!(await this.page.evaluate(holds, given))) {
      assert(performance.now() < end, `${this.user}: not in time: ${holds}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** What the newest messages say, without those that are not sent. */
  async waitForTexts(expected) {
    const holds = (expected) => {
      const articles = [...document.querySelectorAll("article[data-state=sent]")].slice(-expected.length);
      return JSON.stringify(articles.map((article) => article.querySelector(".body").textContent)) === JSON.stringify(expected);
    };
    await this.until(holds, expected).catch(async () => {
      const shown = await this.page.$$eval("article .body", (bodies) => bodies.map((body) => body.textContent.slice(0, 60)));
      throw new Error(`${this.user} sees ${JSON.stringify(shown)}, not ${JSON.stringify(expected)}`);
    });
  }

  /** Every message of the history from its end up to `seq`, by reading upwards. */
  async readUpTo(seq) {
    return this.page.evaluate(async (seq) => {
      const box = document.querySelector(".history");
      const found = new Map();
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      let mistakes = 0;
      for (let round = 0; round < 2_000; round++) {
        const shown = [...document.querySelectorAll("article[data-seq]")];
        const seqs = shown.map((article) => Number(article.dataset.seq));
        if (seqs.some((seq, index) => index > 0 && seq <= seqs[index - 1])) mistakes++;
        for (const article of shown) found.set(Number(article.dataset.seq), article.querySelector(".body").textContent);
        if (seqs.length > 0 && seqs[0] <= seq) break;
        box.scrollTop -= box.clientHeight / 2;
        await frame();
      }
      return { mistakes, drawnMax: document.querySelectorAll("article").length, messages: [...found].sort(([a], [b]) => a - b) };
    }, seq);
  }
}
