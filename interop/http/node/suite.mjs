// Node's `fetch` (undici) as an app's server uses it, and its http module where a connection is looked at.

import http from "node:http";
import net from "node:net";

const { TIDINGS_URL: URL_, TIDINGS_API_KEY: KEY } = process.env;
const bearer = { authorization: `Bearer ${KEY}` };
const json = { ...bearer, "content-type": "application/json" };
let count = 0;
let failures = 0;

function assert(holds, why) {
  if (!holds) throw new Error(typeof why === "string" ? why : JSON.stringify(why));
}

async function check(name, run) {
  count += 1;
  try {
    await run();
    console.log(`ok ${count} - ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`not ok ${count} - ${name}`);
    for (const line of `${error.stack}${error.cause ? `\ncause: ${error.cause.stack}` : ""}`.split("\n")) console.log(`# ${line}`);
  }
}

async function call(method, path, body, options = {}) {
  const signal = AbortSignal.timeout(120_000);
  const text = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(URL_ + path, { method, headers: text === undefined ? bearer : json, body: text, signal, ...options });
  return answer;
}

async function expect(promise, status, code) {
  const answer = await promise;
  const text = await answer.text();
  assert(answer.status === status, `${answer.status}: ${text.slice(0, 300)}`);
  if (code) {
    assert(answer.headers.get("content-type") === "application/problem+json", answer.headers.get("content-type"));
    const problem = JSON.parse(text);
    assert(problem.code === code && problem.status === status && problem.detail, text);
  }
  return text ? JSON.parse(text) : undefined;
}

const message = (number, more = {}) => ({ from: "node-ada", to: "node-ben", client_msg_id: `${number}`, body: { n: number }, ...more });

/** A request by the http module, with the connection that it took. */
function plain(agent, method, path, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request(URL_ + path, { agent, method, headers: { ...(body ? json : bearer), ...headers }, timeout: 120_000 });
    request.on("error", reject);
    request.on("timeout", () => request.destroy(new Error("no answer in time")));
    request.on("response", (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("error", reject);
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, text, reused: request.reusedSocket }));
    });
    request.end(body);
  });
}

async function keptAlive() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  for (let number = 0; number < 50; number += 1) {
    const answer = await plain(agent, "POST", "/v1/messages", JSON.stringify(message(`kept-${number}`)));
    assert(answer.status === 200, answer.text);
    assert(answer.reused === number > 0, `request ${number} came on a new connection`);
  }
  const refused = await plain(agent, "GET", "/v1/nowhere");
  assert(refused.status === 404 && refused.reused, refused);
  assert((await plain(agent, "GET", "/v1/users/node-ada")).reused, "a refusal cost the connection");
  agent.destroy();
}

async function onePerConnection() {
  for (let number = 0; number < 200; number += 1) {
    const answer = await plain(new http.Agent({ keepAlive: false }), "POST", "/v1/messages", JSON.stringify(message(`single-${number}`)));
    assert(answer.status === 200 && !answer.reused && answer.headers.connection === "close", answer);
  }
}

async function streamedBody() {
  const text = JSON.stringify(message("streamed", { body: { text: "ü".repeat(20_000) } }));
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.slice(at, at + 777));
      at += 777;
    },
  });
  const sent = await expect(call("POST", "/v1/messages", undefined, { headers: json, body, duplex: "half" }), 200);
  const page = await expect(call("GET", `/v1/conversations/node-ada~node-ben/messages?from_seq=${sent.seq}&limit=1`), 200);
  assert(page.entries[0].body.text === "ü".repeat(20_000), "the body came otherwise");
}

async function inParallel() {
  await expect(call("POST", "/v1/conversations", { id: "node-crowd", kind: "group", owner: "node-ada", members: ["node-ben"] }), 201);
  const send = (number) => expect(call("POST", "/v1/messages", { conversation: "node-crowd", from: "node-ada", client_msg_id: `m${number}`, body: number }), 200);
  const numbers = Array.from({ length: 300 }, (_, number) => number);
  const sent = await Promise.all(numbers.map(send));
  const again = await Promise.all(numbers.map(send));
  const seqs = sent.map((answer) => answer.seq).sort((a, b) => a - b);
  assert(seqs.every((seq, index) => seq === seqs[0] + index), "a hole, or a number given twice");
  assert(again.every((answer, index) => answer.seq === sent[index].seq && answer.duplicate), "a retry was answered with another result");
  const seen = [];
  for (let from = 1; ; ) {
    const page = await expect(call("GET", `/v1/conversations/node-crowd/messages?from_seq=${from}&limit=37`), 200);
    if (page.entries.length === 0) break;
    seen.push(...page.entries);
    from = seen.at(-1).seq + 1;
  }
  assert(seen.every((entry, index) => entry.seq === index + 1), "the pages have a hole");
  assert(new Set(seen.filter((entry) => entry.kind === "message").map((entry) => entry.body)).size === 300, "a message is missing");
}

async function aborted() {
  for (let number = 0; number < 30; number += 1) {
    const stop = new AbortController();
    const sent = call("POST", "/v1/messages", message(`aborted-${number}`), { signal: stop.signal }).catch(() => undefined);
    setImmediate(() => stop.abort());
    await sent;
  }
  const first = await Promise.all(Array.from({ length: 30 }, (_, number) => expect(call("POST", "/v1/messages", message(`aborted-${number}`)), 200)));
  assert(new Set(first.map((answer) => answer.seq)).size === 30, first);
}

async function large() {
  const many = Array.from({ length: 100 }, (_, number) => ({ conversation: "node-large", from: "node-ada", client_msg_id: `l${number}`, body: { text: "€".repeat(5_000) } }));
  await expect(call("POST", "/v1/conversations", { id: "node-large", kind: "group", owner: "node-ada" }), 201);
  await expect(call("POST", "/v1/messages/batch", { messages: many }), 200);
  const answer = await call("GET", "/v1/conversations/node-large/messages?from_seq=1&limit=100");
  let bytes = 0;
  let text = "";
  const decoder = new TextDecoder("utf-8", { fatal: true });
  for await (const part of answer.body) {
    bytes += part.length;
    text += decoder.decode(part, { stream: true });
  }
  assert(bytes > 1_000_000, `${bytes} bytes`);
  const page = JSON.parse(text + decoder.decode());
  // As many as fit into a page; the rest is told by `more`.
  const messages = page.entries.filter((entry) => entry.kind === "message");
  assert(page.more === true && messages.length > 50 && messages.every((entry) => entry.body.text === "€".repeat(5_000)), messages.length);
}

/** Both requests in one segment; the parser is Node's own. */
function pipelined() {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(URL_);
    const socket = net.connect(Number(port), hostname);
    const body = JSON.stringify(message("pipelined"));
    const head = `Host: ${hostname}:${port}\r\nAuthorization: Bearer ${KEY}\r\n`;
    const get = `GET /v1/users/node-ada HTTP/1.1\r\n${head}\r\n`;
    const post = `POST /v1/messages HTTP/1.1\r\n${head}Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
    let text = "";
    socket.setEncoding("utf8");
    socket.setTimeout(120_000, () => socket.destroy(new Error(`no answer in time after ${text}`)));
    socket.on("error", reject);
    socket.on("data", (part) => (text += part));
    socket.on("close", () => {
      const answers = text.match(/HTTP\/1\.1 \d+/g) ?? [];
      if (answers.length === 21 && answers.every((line) => line === "HTTP/1.1 200")) resolve();
      else reject(new Error(`${answers.length} answers: ${text.slice(-300)}`));
    });
    socket.write((get + post).repeat(10) + get.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
  });
}

console.log(`TAP version 13\n# client: Node ${process.versions.node}, undici ${process.versions.undici}`);
await check("users are made", () => expect(call("PUT", "/v1/users", { users: [{ id: "node-ada" }, { id: "node-ben" }] }), 200));
await check("50 sends on one connection, which outlives a refusal", keptAlive);
await check("200 connections, a send on each", onePerConnection);
await check("a streamed (chunked) body", streamedBody);
await check("300 sends at once, their retries, and their history by pages", inParallel);
await check("sends that were aborted are retried", aborted);
await check("an answer of 1.5 MB", large);
await check("21 requests in one write", pipelined);
await check("HEAD has the length and no body", async () => {
  const [full, head] = [await call("GET", "/v1/users/node-ada"), await call("HEAD", "/v1/users/node-ada")];
  const text = await full.text();
  assert(head.status === 200 && (await head.text()) === "" && head.headers.get("content-length") === `${Buffer.byteLength(text)}`, [...head.headers]);
});
await check("OPTIONS is 405 with Allow", async () => {
  const answer = await call("OPTIONS", "/v1/messages");
  assert(answer.status === 405 && answer.headers.get("allow").includes("POST"), [...answer.headers]);
});
await check("errors are problems", async () => {
  await expect(call("GET", "/v1/users/node-nobody"), 404, "not_found");
  await expect(call("GET", "/v1/users/node-ada", undefined, { headers: {} }), 401, "unauthorized");
  await expect(call("POST", "/v1/messages", undefined, { headers: json, body: "{" }), 400, "malformed");
  await expect(call("POST", "/v1/messages", message("typed", { type: 7 })), 422, "invalid_field");
});
await check("8 MB too much is 413", () => expect(call("POST", "/v1/messages", message("large", { body: "z".repeat(8_000_000) })), 413, "limit_exceeded"));
await check("an id beyond ASCII in a path", async () => {
  await expect(call("PUT", "/v1/users", { users: [{ id: "node-jörg+ß%" }] }), 200);
  const user = await expect(call("GET", `/v1/users/${encodeURIComponent("node-jörg+ß%")}`), 200);
  assert(user.id === "node-jörg+ß%", user);
});
console.log(`1..${count}`);
process.exit(failures ? 1 : 0);
