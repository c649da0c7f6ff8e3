// A browser's push as its page and its service worker see it, with a push service that keeps what is sent to it.
import { createDecipheriv, createECDH, hkdfSync, randomBytes, type ECDH } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { PushManagerLike, PushOptionsLike, PushSubscriptionLike } from "../../src/index.js";

/** Takes notifications as a browser's push service does (RFC 8030). */
export class PushService {
  readonly #server: Server;
  readonly #waiting: ((body: Buffer) => void)[] = [];
  readonly #bodies: Buffer[] = [];
  url = "";

  constructor() {
    this.#server = createServer((request, answer) => {
      const parts: Buffer[] = [];
      request.on("data", (part: Buffer) => parts.push(part));
      request.on("end", () => {
        const body = Buffer.concat(parts);
        const next = this.#waiting.shift();
        if (next) next(body);
        else this.#bodies.push(body);
        answer.writeHead(201).end();
      });
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

  /** What was sent next, encrypted. */
  next(): Promise<Buffer> {
    const body = this.#bodies.shift();
    return body ? Promise.resolve(body) : new Promise((resolve) => this.#waiting.push(resolve));
  }

  end(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

export class FakeSubscription implements PushSubscriptionLike {
  readonly endpoint: string;
  readonly options: { readonly applicationServerKey: ArrayBuffer };
  readonly #keys: ECDH = createECDH("prime256v1");
  readonly #auth = randomBytes(16);
  readonly #ended: () => void;

  constructor(endpoint: string, applicationServerKey: ArrayBuffer, ended: () => void) {
    this.endpoint = endpoint;
    this.options = { applicationServerKey };
    this.#keys.generateKeys();
    this.#ended = ended;
  }

  toJSON(): { readonly endpoint: string; readonly expirationTime: null; readonly keys: { readonly p256dh: string; readonly auth: string } } {
    const keys = { p256dh: this.#keys.getPublicKey("base64url"), auth: this.#auth.toString("base64url") };
    return { endpoint: this.endpoint, expirationTime: null, keys };
  }

  async unsubscribe(): Promise<boolean> {
    this.#ended();
    return true;
  }

  /** What a service worker gets of an encrypted notification (RFC 8291). */
  read(body: Buffer): string {
    const [salt, length] = [body.subarray(0, 16), body.readUInt8(20)];
    const [sender, record] = [body.subarray(21, 21 + length), body.subarray(21 + length)];
    const derive = (key: Buffer, extra: Buffer, info: readonly Buffer[], bytes: number): Buffer =>
      Buffer.from(hkdfSync("sha256", key, extra, Buffer.concat(info), bytes));
    const own = this.#keys.getPublicKey();
    const secret = derive(this.#keys.computeSecret(sender), this.#auth, [Buffer.from("WebPush: info\0"), own, sender], 32);
    const key = derive(secret, salt, [Buffer.from("Content-Encoding: aes128gcm\0")], 16);
    const nonce = derive(secret, salt, [Buffer.from("Content-Encoding: nonce\0")], 12);
    const cipher = createDecipheriv("aes-128-gcm", key, nonce);
    cipher.setAuthTag(record.subarray(-16));
    const padded = Buffer.concat([cipher.update(record.subarray(0, -16)), cipher.final()]);
    return padded.subarray(0, padded.lastIndexOf(2)).toString();
  }
}

/** Of one service worker; `permission` is what the person answers. A private window tells the same refusal by another name. */
export class FakePushManager implements PushManagerLike {
  readonly #service: string;
  #made = 0;
  permission: "granted" | "denied" = "granted";
  isPrivateWindow = false;
  isReachable = true;
  subscription: FakeSubscription | null = null;

  constructor(service: string) {
    this.#service = service;
  }

  async getSubscription(): Promise<FakeSubscription | null> {
    return this.subscription;
  }

  async permissionState(): Promise<string> {
    return this.permission;
  }

  async subscribe({ applicationServerKey }: PushOptionsLike): Promise<FakeSubscription> {
    const denial = this.isPrivateWindow ? "AbortError" : "NotAllowedError";
    if (this.permission === "denied") throw new DOMException("Registration failed - permission denied", denial);
    if (!this.isReachable) throw new DOMException("Registration failed - push service error", "AbortError");
    // As browsers refuse it (Push API, 8.1).
    if (this.subscription) throw new DOMException("a subscription with a different applicationServerKey already exists", "InvalidStateError");
    const endpoint = `${this.#service}/push/${randomBytes(8).toString("hex")}-${++this.#made}`;
    return (this.subscription = new FakeSubscription(endpoint, applicationServerKey, () => (this.subscription = null)));
  }
}
