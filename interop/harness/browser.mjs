// Chromium of the system, a page server and a proxy whose connections can be cut: what a browser's suites stand on.
import { execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { connect, createServer as createProxy } from "node:net";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const PROGRAM = process.env.CHROMIUM ?? "/usr/bin/chromium";
// It runs as root in a container, without a screen, and asks no other host for anything.
const ARGUMENTS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
];
const START_MS_MAX = 120_000;

export function version() {
  return execFileSync(PROGRAM, ["--version"], { encoding: "utf8" }).trim().split(" ").slice(0, 2).join(" ");
}

export function launch() {
  return chromium.launch({ executablePath: PROGRAM, headless: false, args: ARGUMENTS, timeout: START_MS_MAX });
}

/** A context that is no private window: it keeps its profile in this folder. */
export function launchWithProfile(folder) {
  return chromium.launchPersistentContext(folder, { executablePath: PROGRAM, headless: false, args: ARGUMENTS, timeout: START_MS_MAX });
}

/** Serves files (path to file), and functions (path to text of JSON) on a port of its own; its origin. */
export async function serve(files) {
  const types = { html: "text/html", mjs: "text/javascript", js: "text/javascript", json: "application/json" };
  const server = createServer((request, response) => {
    const url = new URL(request.url, "http://here");
    const thing = files[url.pathname];
    if (!thing) return response.writeHead(404).end();
    const text = typeof thing === "function" ? thing(url.searchParams) : readFileSync(thing);
    const ending = typeof thing === "function" ? "json" : thing.split(".").pop();
    response.writeHead(200, { "content-type": types[ending], "cache-control": "no-store" }).end(text);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { origin: `http://127.0.0.1:${server.address().port}`, end: () => server.close() };
}

/** Passes connections on to `target()` ("host:port"), one to one. Each can be cut without a goodbye, by its number. */
export async function proxy(target) {
  const pairs = [];
  let isBlocked = false;
  const server = createProxy((near) => {
    if (isBlocked) return near.destroy();
    const [host, port] = target().split(":");
    const far = connect(Number(port), host);
    const end = () => (near.destroy(), far.destroy());
    pairs.push(end);
    near.setNoDelay(true);
    far.setNoDelay(true);
    near.on("error", end).on("close", end);
    far.on("error", end).on("close", end);
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    address: `127.0.0.1:${server.address().port}`,
    newest: () => pairs.length - 1,
    cut: (number) => void pairs[number](),
    cutAll: () => pairs.forEach((end) => end()),
    /** Until it is unblocked, connections end as they come. */
    block: () => void (isBlocked = true),
    unblock: () => void (isBlocked = false),
    end: () => (pairs.forEach((end) => end()), server.close()),
  };
}
