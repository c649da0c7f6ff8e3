// A stranger's project: the packed packages are in it, its files are what the READMEs print, and people look at it in Chromium.
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { connect } from "node:net";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { signToken } from "../../docs/examples/server/node/sign-token.mjs";
import { launch } from "./browser.mjs";
import { assert } from "./session.mjs";

const { TIDINGS_URL, TIDINGS_API_KEY, TIDINGS_TOKEN_KEY } = process.env;
const REPOSITORY = fileURLToPath(new URL("../..", import.meta.url));
const MODULES = join(REPOSITORY, "interop/node_modules");
const WAIT_MS_MAX = 60_000;

/** The code that a README prints, by the names that it gives its files. */
export function printed(readme) {
  const text = readFileSync(join(REPOSITORY, readme), "utf8");
  const files = Object.fromEntries([...text.matchAll(/```[jt]sx?\n\/\/ (\S+)\n([\s\S]+?)```/g)].map(([, name, code]) => [name, code]));
  return (name) => {
    assert(files[name], `${readme} prints no ${name}`);
    return files[name];
  };
}

export const token = (user) => signToken(TIDINGS_TOKEN_KEY, user);

export async function api(method, path, body) {
  const headers = { authorization: `Bearer ${TIDINGS_API_KEY}`, "content-type": "application/json" };
  const answer = await fetch(TIDINGS_URL + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  assert(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
}

/** Those whom the READMEs name. */
export const addPeople = () => api("PUT", "/v1/users", { users: [{ id: "alice" }, { id: "bob" }] });
export const say = (from, to, text) => api("POST", "/v1/messages", { from, to, body: { text } });

/** A project finds the packed packages in `interop/sdk/projects/node_modules`, and all else in `interop/node_modules`. */
export class Project {
  #children = [];

  constructor(name) {
    this.folder = join(REPOSITORY, "interop/sdk/projects", name);
    rmSync(this.folder, { recursive: true, force: true });
    this.write("package.json", JSON.stringify({ name: `project-${name}`, private: true, type: "module" }));
  }

  write(name, text) {
    mkdirSync(dirname(join(this.folder, name)), { recursive: true });
    writeFileSync(join(this.folder, name), text);
  }

  read(name) {
    return readFileSync(join(this.folder, name), "utf8");
  }

  /** Runs a program of a package, as `npx` does, or of the project's own to its end; what it printed. */
  async run(program, ...given) {
    const child = this.#spawn(program, given);
    const status = await new Promise((resolve) => child.on("close", resolve));
    assert(status === 0, `${program} ended with ${status}:\n${child.said()}`);
    return child.said();
  }

  /** Starts a program, and waits until it says what `wanted` matches; the match. */
  start(wanted, program, ...given) {
    this.#spawn(program, given);
    return this.says(wanted);
  }

  /** Waits until the program that was started last says what `wanted` matches. */
  says(wanted) {
    const child = this.#children.at(-1);
    return new Promise((resolve, reject) => {
      const fail = (why) => reject(new Error(`it ${why}, not ${wanted}:\n${child.said()}`));
      const timer = setTimeout(fail, WAIT_MS_MAX, "says in time");
      child.on("close", (status) => fail(`ended with ${status}`));
      const look = () => {
        const match = wanted.exec(child.said().replace(/\x1b\[[\d;]*m/g, ""));
        if (match) resolve(match), clearTimeout(timer);
      };
      for (const stream of [child.stdout, child.stderr]) stream.on("data", look);
      look();
    });
  }

  #spawn(program, given) {
    const binary = join(MODULES, ".bin", program);
    const command = existsSync(binary) ? [binary, ...given] : [process.execPath, program, ...given];
    const child = spawn(command[0], command.slice(1), {
      cwd: this.folder,
      env: { ...process.env, NEXT_TELEMETRY_DISABLED: "1", NODE_ENV: undefined },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (said += data));
    child.said = () => said;
    this.#children.push(child);
    return child;
  }

  end() {
    for (const child of this.#children) child.kill("SIGKILL");
  }
}

/** Alice's browser: a page of it, and what no page may say. */
export class Visitor {
  static async open() {
    const visitor = new Visitor();
    visitor.browser = await launch();
    visitor.complaints = [];
    return visitor;
  }

  /** `token`: the answer of the route that the READMEs leave to the app's own server, where the project has none. */
  async visit(url, { token } = {}) {
    this.page = await this.browser.newPage({ viewport: { width: 480, height: 320 } });
    this.page.setDefaultTimeout(WAIT_MS_MAX);
    this.page.on("pageerror", (error) => this.complaints.push(String(error.stack)));
    this.page.on("console", (message) => {
      const isIcon = message.location().url.endsWith("/favicon.ico");
      if (["error", "warning"].includes(message.type()) && !isIcon) this.complaints.push(`${message.text()} (${message.location().url})`);
    });
    if (token) await this.page.route("**/token", (route) => route.fulfill({ body: token }));
    await this.page.goto(url);
  }

  async sees(text) {
    await this.page.getByText(text).first().waitFor().catch(async () => {
      const shown = await this.page.evaluate(() => document.body.innerText);
      throw new Error(`the page shows ${JSON.stringify(shown)}, not ${JSON.stringify(text)}; it says ${this.complaints.join("\n")}`);
    });
  }

  /** Bob writes, and Alice answers in the page's form: both are there, sent. */
  async talks(words) {
    await say("bob", "alice", `${words}?`);
    await this.sees(`bob: ${words}? (sent)`);
    await this.page.fill("input[name=text]", `${words}!`);
    await this.page.press("input[name=text]", "Enter");
    await this.sees(`alice: ${words}! (sent)`);
  }

  async close() {
    if (process.env.SCREENSHOTS) await this.page.screenshot({ path: join(process.env.SCREENSHOTS, `${new URL(this.page.url()).port}.png`) });
    await this.page.close();
    assert(this.complaints.length === 0, this.complaints.join("\n"));
  }
}

/** A web server of the app: these files (path to text), and Tidings under `/v1`. */
export async function front(files) {
  const types = { ".html": "text/html", ".js": "text/javascript", ".map": "application/json" };
  const { hostname, port } = new URL(TIDINGS_URL);
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://here");
    const text = files[pathname];
    response.writeHead(text === undefined ? 404 : 200, { "content-type": types[extname(pathname)] ?? "text/html" }).end(text);
  });
  server.on("upgrade", (request, near, head) => {
    const far = connect(Number(port), hostname);
    const end = () => (near.destroy(), far.destroy());
    near.on("error", end).on("close", end);
    far.on("error", end).on("close", end);
    const headers = request.rawHeaders.flatMap((name, index) => (index % 2 === 0 ? [`${name}: ${request.rawHeaders[index + 1]}\r\n`] : []));
    far.write(`${request.method} ${request.url} HTTP/1.1\r\n${headers.join("")}\r\n`);
    far.write(head);
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { origin: `http://127.0.0.1:${server.address().port}`, end: () => server.close() };
}
