// Devices that are notified by providers, against the real server and a browser's push that is a fake one.
import assert from "node:assert/strict";
import { createECDH, generateKeyPairSync } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { runInNewContext } from "node:vm";
import WebSocket from "ws";
import { CLIENT_CODES, connect, TidingsError, type PushManagerLike, type Tidings } from "../../src/index.js";
import { FakePushManager, PushService } from "../support/fake-push.js";
import { RealServer } from "../support/real-server.js";
import { repositoryFile } from "../support/repository.js";

const APNS = { provider: "apns", token: "740f4707bebcf74f9b7c25d48e3358945f6aa01da5ddb387462c7eaf61bb78ad" } as const;

function keyPair(): { readonly publicKey: string; readonly privateKey: string } {
  const keys = createECDH("prime256v1");
  keys.generateKeys();
  // A private key with leading zeros is told shorter.
  return { publicKey: keys.getPublicKey("base64url"), privateKey: Buffer.from(keys.getPrivateKey("hex").padStart(64, "0"), "hex").toString("base64url") };
}

const { publicKey, privateKey } = keyPair();
const folder = mkdtempSync(join(tmpdir(), "tidings-apns-"));
let service: PushService;
let server: RealServer;
const clients: Tidings[] = [];

before(async () => {
  service = await new PushService().start();
  const appleKey = join(folder, "AuthKey.p8");
  writeFileSync(appleKey, generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ type: "pkcs8", format: "pem" }));
  server = await new RealServer({
    TIDINGS_WEB_PUSH_PUBLIC_KEY: publicKey,
    TIDINGS_WEB_PUSH_PRIVATE_KEY: privateKey,
    TIDINGS_WEB_PUSH_SUBJECT: "mailto:ops@example.com",
    TIDINGS_WEB_PUSH_SERVICES: service.url,
    TIDINGS_APNS_URL: "http://127.0.0.1:1",
    TIDINGS_APNS_TOPIC: "com.example.app",
    TIDINGS_APNS_KEY_FILE: appleKey,
    TIDINGS_APNS_KEY_ID: "KEY1234567",
    TIDINGS_APNS_TEAM_ID: "TEAM123456",
  }).start();
});

afterEach(async () => {
  await Promise.all(clients.splice(0).map((client) => client.close()));
});

after(async () => {
  await server.remove();
  service.end();
  rmSync(folder, { recursive: true, force: true });
});

async function open(user: string, deviceId?: string): Promise<Tidings> {
  const client = await connect({ url: server.url, token: async () => server.token(user), WebSocket, ...(deviceId !== undefined && { deviceId }) });
  clients.push(client);
  return client;
}

async function userOfTest(): Promise<string> {
  const [user] = await server.users("ada");
  return user ?? "";
}

/** What the server has: device and provider. */
async function registered(user: string): Promise<readonly (readonly [string, string])[]> {
  const answer = await server.api("GET", `/v1/users/${user}/push_tokens`);
  const { push_tokens } = answer as { readonly push_tokens: readonly { readonly device_id: string; readonly provider: string }[] };
  return push_tokens.map(({ device_id, provider }) => [device_id, provider]);
}

const refuses = (promise: Promise<unknown>, code: string, retry = false): Promise<void> =>
  assert.rejects(promise, (error) => error instanceof TidingsError && error.code === code && error.retry === retry);

test("a token is registered for the device that the session binds with, replaced and forgotten", async () => {
  const user = await userOfTest();
  const { offlinePush } = await open(user);
  const { devices } = ((await server.api("GET", `/v1/presence?users=${user}`)) as { readonly users: readonly [{ readonly devices: readonly { readonly device_id: string }[] }] }).users[0];
  assert.deepEqual(devices.map(({ device_id }) => device_id), [offlinePush.deviceId]);
  await offlinePush.register(APNS);
  assert.deepEqual(await registered(user), [[offlinePush.deviceId, "apns"]]);
  await offlinePush.subscribe({ publicKey, registration: { pushManager: new FakePushManager(service.url) } });
  assert.deepEqual(await registered(user), [[offlinePush.deviceId, "web_push"]]);
  await offlinePush.forget();
  assert.deepEqual(await registered(user), []);
  await offlinePush.forget(); // there is nothing, and nothing is wrong
});

test("a device id may hold anything that an id may", async () => {
  const user = await userOfTest();
  const { offlinePush } = await open(user, "100%?#é");
  await offlinePush.register(APNS);
  assert.deepEqual(await registered(user), [["100%?#é", "apns"]]);
});

test("the server's refusals keep their codes", async () => {
  const { offlinePush } = await open(await userOfTest());
  await refuses(offlinePush.register({ provider: "apns", token: "no hexadecimal" }), "invalid_field");
  await refuses(offlinePush.register({ provider: "fcm", token: "dEviCe:APA91b" }), "conflict"); // no setting names FCM
  const elsewhere = new FakePushManager("http://127.0.0.1:1");
  await refuses(offlinePush.subscribe({ publicKey, registration: { pushManager: elsewhere } }), "invalid_field");
});

test("the subscription that is there is registered again; one with another key is replaced", async () => {
  const user = await userOfTest();
  const { offlinePush } = await open(user);
  const pushManager = new FakePushManager(service.url);
  const registration = { pushManager };
  await offlinePush.subscribe({ publicKey: keyPair().publicKey, registration });
  const former = pushManager.subscription;
  await offlinePush.subscribe({ publicKey, registration });
  const current = pushManager.subscription;
  assert.ok(former && current && current !== former);
  assert.equal(Buffer.from(current.options.applicationServerKey).toString("base64url"), publicKey);
  await server.api("DELETE", `/v1/users/${user}/devices/${offlinePush.deviceId}/push_token`);
  await offlinePush.subscribe({ publicKey, registration });
  assert.equal(pushManager.subscription, current);
  assert.deepEqual(await registered(user), [[offlinePush.deviceId, "web_push"]]);
});

test("a browser's refusals have stable codes, and nothing is registered", async () => {
  const user = await userOfTest();
  const { offlinePush } = await open(user);
  const pushManager = new FakePushManager(service.url);
  const registration = { pushManager };
  pushManager.permission = "denied";
  for (pushManager.isPrivateWindow of [false, true]) {
    await refuses(offlinePush.subscribe({ publicKey, registration }), CLIENT_CODES.notificationsDenied);
  }
  pushManager.permission = "granted";
  pushManager.isReachable = false;
  await refuses(offlinePush.subscribe({ publicKey, registration }), CLIENT_CODES.notificationsFailed, true);
  await refuses(offlinePush.subscribe({ publicKey, registration: {} }), CLIENT_CODES.notificationsUnsupported);
  await refuses(offlinePush.subscribe({ publicKey }), CLIENT_CODES.notificationsUnsupported); // Node has no service workers
  await assert.rejects(offlinePush.subscribe({ publicKey: publicKey.slice(1), registration }), TypeError);
  await assert.rejects(offlinePush.subscribe({ publicKey: "=", registration }), TypeError);
  assert.deepEqual(await registered(user), []);
});

test("the page's own service worker subscribes and forgets, also after a reload", async () => {
  const user = await userOfTest();
  const pushManager = new FakePushManager(service.url);
  const had = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  const serviceWorker = { ready: Promise.resolve({ pushManager }), getRegistration: async () => ({ pushManager }) };
  Object.defineProperty(globalThis, "navigator", { configurable: true, value: { serviceWorker } });
  try {
    await (await open(user, "browser")).offlinePush.subscribe({ publicKey });
    assert.deepEqual(await registered(user), [["browser", "web_push"]]);
    await (await open(user, "browser")).offlinePush.forget();
  } finally {
    if (had) Object.defineProperty(globalThis, "navigator", had);
    else Reflect.deleteProperty(globalThis, "navigator");
  }
  assert.deepEqual(await registered(user), []);
  assert.equal(pushManager.subscription, null);
});

test("forget does its other half when one fails", async () => {
  const user = await userOfTest();
  const { offlinePush } = await open(user);
  const pushManager = new FakePushManager(service.url);
  await offlinePush.subscribe({ publicKey, registration: { pushManager } });
  const fail = (): Promise<never> => Promise.reject(new Error("broken"));
  const broken: PushManagerLike = { getSubscription: fail, subscribe: fail, permissionState: fail };
  await refuses(offlinePush.forget({ registration: { pushManager: broken } }), CLIENT_CODES.notificationsFailed);
  assert.deepEqual(await registered(user), []);

  const lost = await connect({
    url: server.url,
    token: async () => server.token(user),
    WebSocket,
    fetch: () => Promise.reject(new TypeError("fetch failed")),
  });
  clients.push(lost);
  await refuses(lost.offlinePush.forget({ registration: { pushManager } }), CLIENT_CODES.connectionLost, true);
  assert.equal(pushManager.subscription, null);
});

interface Shown {
  readonly title: string;
  readonly body: string;
  readonly tag: string;
  readonly data: { readonly conversation: string; readonly seq: number };
}

type Handler = (event: { readonly waitUntil: (work: Promise<unknown>) => void; readonly [name: string]: unknown }) => void;

/** The service worker of the README, as a person pastes it. */
class ServiceWorker {
  readonly shown: Shown[] = [];
  readonly opened: string[] = [];
  /** What the open pages were told; undefined: no page is open. */
  told: unknown[] | undefined;
  readonly #handlers = new Map<string, Handler>();

  constructor() {
    const program = /```js\n(\/\/ sw\.js\n[\s\S]+?)```/.exec(readFileSync(repositoryFile("sdk/typescript/README.md"), "utf8"))?.[1];
    assert.ok(program);
    const page = { postMessage: (message: unknown) => void this.told?.push(message), focus: async () => undefined };
    runInNewContext(program, {
      self: {
        addEventListener: (name: string, handler: Handler) => this.#handlers.set(name, handler),
        registration: { showNotification: async (title: string, options: Omit<Shown, "title">) => void this.shown.push({ title, ...options }) },
        clients: { matchAll: async () => (this.told ? [page] : []), openWindow: async (url: string) => void this.opened.push(url) },
      },
    });
  }

  async happen(name: string, event: { readonly [name: string]: unknown }): Promise<void> {
    const works: Promise<unknown>[] = [];
    this.#handlers.get(name)?.({ ...event, waitUntil: (work) => void works.push(work) });
    assert.equal(works.length, 1, "a worker may be stopped before what it does not wait for");
    await Promise.all(works);
  }
}

test("a message to a user who is away is shown by the service worker of the README, and opens its conversation", async () => {
  const user = await userOfTest();
  const [sender] = await server.users("ben");
  const pushManager = new FakePushManager(service.url);
  const client = await open(user);
  await client.offlinePush.subscribe({ publicKey, registration: { pushManager } });
  await client.close();
  const { conversation } = (await server.api("POST", "/v1/messages", { from: sender, to: user, body: { text: "are you there?" } })) as { readonly conversation: string };

  const worker = new ServiceWorker();
  const payload = pushManager.subscription?.read(await service.next()) ?? "";
  await worker.happen("push", { data: { json: () => JSON.parse(payload) as unknown } });
  const [shown] = worker.shown;
  assert.ok(shown);
  assert.deepEqual([shown.title, shown.body, shown.data.conversation, shown.data.seq], [sender, "are you there?", conversation, 1]);
  assert.ok(shown.tag.length > 0);

  const notification = { data: shown.data, close: () => undefined };
  await worker.happen("notificationclick", { notification });
  assert.equal(new URL(worker.opened[0] ?? "", "https://chat").searchParams.get("conversation"), conversation);
  worker.told = [];
  await worker.happen("notificationclick", { notification });
  assert.equal(JSON.stringify(worker.told), JSON.stringify([{ conversation, seq: 1 }]));
  assert.equal(worker.opened.length, 1);
});
