// The real server, in a process of its own on a folder and ports of its own: TIDINGS_BIN names the program.
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { createHmac, randomUUID } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { connect as dial, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const API_KEY = "sdk-key-of-the-app-0123456789abcdef";
const TOKEN_KEY = "sdk secret that tokens are signed with";
const START_MS_MAX = 120_000;

/** The machine's clock, also where a test has set another one. */
export const realNow = Date.now.bind(Date);

export class RealServer {
  readonly #folder = mkdtempSync(join(tmpdir(), "tidings-sdk-"));
  readonly #settings: { readonly [name: string]: string };
  #process: ChildProcess | undefined;
  #address = "";

  constructor(settings: { readonly [name: string]: string } = {}) {
    this.#settings = settings;
  }

  get address(): string {
    return this.#address;
  }

  get url(): string {
    return `http://${this.#address}`;
  }

  async start(): Promise<this> {
    const program = process.env["TIDINGS_BIN"];
    if (program === undefined) throw new Error("TIDINGS_BIN names no server");
    const listening = join(this.#folder, "data", "listening");
    rmSync(listening, { force: true });
    this.#process = spawn(program, ["serve"], {
      cwd: this.#folder,
      stdio: "ignore",
      env: {
        PATH: process.env["PATH"] ?? "",
        TIDINGS_HTTP_LISTEN: "127.0.0.1:0",
        TIDINGS_MIOP_LISTEN: "127.0.0.1:0",
        TIDINGS_DATA_DIR: join(this.#folder, "data"),
        TIDINGS_API_KEY: API_KEY,
        TIDINGS_TOKEN_KEY: TOKEN_KEY,
        TIDINGS_ENGINE_SENDS_PER_SECOND: "0",
        ...this.#settings,
      },
    });
    const end = Date.now() + START_MS_MAX;
    while (!existsSync(listening)) {
      if (this.#process.exitCode !== null || Date.now() > end) throw new Error("the server did not start");
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    this.#address = /http=(\S+)/.exec(readFileSync(listening, "utf8"))?.[1] ?? "";
    return this;
  }

  /** As a crash ends it (SIGKILL), or in order (SIGTERM). */
  async end(signal: "SIGKILL" | "SIGTERM" = "SIGKILL"): Promise<void> {
    const ended = this.#process;
    if (!ended || ended.exitCode !== null || ended.signalCode !== null) return;
    const gone = new Promise((resolve) => ended.once("exit", resolve));
    ended.kill(signal);
    await gone;
  }

  /** Of the data folder, while the server is stopped. */
  backup(): void {
    execFileSync(process.env["TIDINGS_BIN"] ?? "", ["backup", join(this.#folder, "backup")], {
      cwd: this.#folder,
      stdio: "pipe",
      env: { PATH: process.env["PATH"] ?? "", TIDINGS_DATA_DIR: join(this.#folder, "data"), TIDINGS_API_KEY: API_KEY, TIDINGS_TOKEN_KEY: TOKEN_KEY },
    });
  }

  /** Puts the backup in the place of the data folder, while the server is stopped. */
  restore(): void {
    rmSync(join(this.#folder, "data"), { recursive: true });
    cpSync(join(this.#folder, "backup"), join(this.#folder, "data"), { recursive: true });
  }

  async remove(): Promise<void> {
    await this.end();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** As the app's own server. */
  async api(method: string, path: string, body?: unknown): Promise<unknown> {
    const answer = await fetch(this.url + path, {
      method,
      headers: { authorization: `Bearer ${API_KEY}`, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  }

  /** Users of this test alone. */
  async users(...names: readonly string[]): Promise<readonly string[]> {
    const ids = names.map((name) => `${name}-${randomUUID().slice(0, 8)}`);
    await this.api("PUT", "/v1/users", { users: ids.map((id) => ({ id })) });
    return ids;
  }

  token(user: string, seconds = 3_600): string {
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
    const now = Math.floor(realNow() / 1000);
    const signed = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: user, iat: now, exp: now + seconds, jti: randomUUID() })}`;
    return `${signed}.${createHmac("sha256", TOKEN_KEY).update(signed).digest("base64url")}`;
  }
}

/** Passes connections on to `target()`; they can be cut without a goodbye, and refused. */
export class Proxy {
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;
  isBlocked = false;
  url = "";

  constructor(target: () => string) {
    this.#server = createServer((near) => {
      if (this.isBlocked) {
        near.destroy();
        return;
      }
      const [host, port] = target().split(":");
      const far = dial(Number(port), host ?? "");
      for (const [socket, other] of [[near, far], [far, near]] as const) {
        this.#sockets.add(socket);
        socket.on("error", () => other.destroy());
        socket.on("close", () => {
          this.#sockets.delete(socket);
          other.destroy();
        });
        socket.pipe(other);
      }
    });
  }

  start(): Promise<this> {
    return new Promise((resolve) =>
      this.#server.listen(0, "127.0.0.1", () => {
        const address = this.#server.address();
        this.url = `http://127.0.0.1:${typeof address === "object" ? address?.port : 0}`;
        resolve(this);
      }),
    );
  }

  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  end(): void {
    this.cut();
    this.#server.close();
  }
}

// Nothing here takes seconds, but the machine may be busy.
const PATIENCE_MS = 60_000;

/** Resolves when it holds: looked at after each change of what is observed. */
export function until(observed: { subscribe(listener: () => void): () => void }, holds: () => boolean): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      end();
      reject(new Error(`not in time: ${holds.toString()}`));
    }, PATIENCE_MS);
    const look = (): void => {
      if (!holds()) return;
      clearTimeout(timer);
      end();
      resolve();
    };
    const end = observed.subscribe(() => queueMicrotask(look));
    queueMicrotask(look);
  });
}
