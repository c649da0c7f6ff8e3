// What a page may do at a server of another origin, judged by a browser.
import assert from "node:assert/strict";
import { launch, version } from "../../harness/browser.mjs";
import { run } from "../../harness/tap.mjs";

const { ALLOWED, OTHER, SOME, NONE, TOKEN } = process.env;
const browser = await launch();
const [allowed, other] = await Promise.all([ALLOWED, OTHER].map(async (origin) => {
  const page = await browser.newPage();
  await page.goto(origin);
  return page;
}));

/** A call from a page: its status, headers that the page sees, and JSON; or why the browser did not let it. */
function call(page, server, method, path, body, options = {}) {
  const headers = { authorization: `Bearer ${options.token ?? TOKEN}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (options.headers) Object.assign(headers, options.headers);
  const init = { method, headers, body, credentials: options.credentials ?? "omit" };
  return page.evaluate(async ([url, init]) => {
    try {
      const answer = await fetch(url, init);
      const text = await answer.text();
      const json = text && (answer.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : null;
      return { status: answer.status, headers: Object.fromEntries(answer.headers), json };
    } catch (error) {
      return { blocked: error.name };
    }
  }, [server + path, init]);
}

/** How a WebSocket of a page begins: "open", or the code that it was closed with. */
function connect(page, server) {
  return page.evaluate((url) => new Promise((resolve) => {
    const socket = new WebSocket(url);
    socket.onopen = () => (socket.close(), resolve("open"));
    socket.onclose = (event) => resolve(event.code);
  }), `${server.replace("http", "ws")}/v1/connect`);
}

const send = JSON.stringify({ to: "cors-ben", body: { text: "from a page" } });
const question = JSON.stringify({ placement: "home" });

const cases = [
  ["a page that may asks with a token", async () => {
    const { status, json } = await call(allowed, SOME, "GET", "/v1/users/cors-ada");
    assert.deepEqual([status, json.id], [200, "cors-ada"]);
  }],
  ["and sends", async () => {
    for (let count = 1; count < 4; count += 1) {
      const { status, json } = await call(allowed, SOME, "POST", "/v1/messages", send);
      assert.deepEqual([status, json.seq], [200, count]);
    }
  }],
  ["and asks for a popup", async () => {
    assert.equal((await call(allowed, SOME, "POST", "/v1/popups/decide", question)).status, 204);
  }],
  ["by every method", async () => {
    assert.equal((await call(allowed, SOME, "PUT", "/v1/users/me/conversations/cors-ada~cors-ben/read", '{"seq":1}')).status, 200);
    for (const method of ["PATCH", "DELETE"]) {
      const { status, json } = await call(allowed, SOME, method, "/v1/nowhere", method === "PATCH" ? "{}" : undefined);
      assert.deepEqual([status, json.code], [404, "not_found"], method);
    }
  }],
  ["with the headers that operations take", async () => {
    const headers = { "if-match": "1", "tidings-author": "ada" };
    assert.equal((await call(allowed, SOME, "PUT", "/v1/popups/p", "{}", { headers })).status, 403);
  }],
  ["and reads refusals, and their headers", async () => {
    const stranger = await call(allowed, SOME, "POST", "/v1/messages", send, { token: "x" });
    assert.deepEqual([stranger.status, stranger.json.code], [401, "unauthorized"]);
    assert.equal(stranger.headers["www-authenticate"], "Bearer");
    const question = await call(allowed, SOME, "POST", "/v1/popups/decide", "{}", { token: "x" });
    assert.deepEqual([question.status, question.json.code], [401, "unauthorized"]);
    const malformed = await call(allowed, SOME, "POST", "/v1/messages", "{");
    assert.deepEqual([malformed.status, malformed.json.code], [400, "malformed"]);
    const long = await call(allowed, SOME, "POST", "/v1/messages", " ".repeat(1_000_000));
    assert.deepEqual([long.status, long.json.code], [413, "limit_exceeded"]);
  }],
  ["but not with cookies, which are not allowed", async () => {
    const { blocked } = await call(allowed, SOME, "GET", "/v1/users/cors-ada", undefined, { credentials: "include" });
    assert.equal(blocked, "TypeError");
  }],
  ["and opens a WebSocket", async () => assert.equal(await connect(allowed, SOME), "open")],
  ["a page of another origin reads nothing", async () => {
    assert.equal((await call(other, SOME, "GET", "/v1/users/cors-ada")).blocked, "TypeError");
    assert.equal((await call(other, SOME, "POST", "/v1/messages", send)).blocked, "TypeError");
    assert.equal((await call(other, SOME, "GET", "/healthz", undefined, { headers: {} })).blocked, "TypeError");
  }],
  ["and what it would have sent was not taken", async () => {
    const { json } = await call(allowed, SOME, "POST", "/v1/messages", send);
    assert.equal(json.seq, 4);
  }],
  ["and opens no WebSocket", async () => assert.equal(await connect(other, SOME), 1006)],
  ["a server without origins lets no page of another read", async () => {
    assert.equal((await call(allowed, NONE, "GET", "/v1/users/cors-ada")).blocked, "TypeError");
  }],
  ["and does not look where a WebSocket comes from", async () => assert.equal(await connect(other, NONE), "open")],
];
const failed = await run(version(), cases);
await browser.close();
process.exit(failed);
