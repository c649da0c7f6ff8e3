// The service worker of the README in Chromium: it gets what the server sends by Web Push, and shows it or takes it away.
import { createECDH } from "node:crypto";
import WebSocket from "ws";
import { connect } from "../../../sdk/typescript/dist/src/index.js";
import { FakePushManager, PushService } from "../../../sdk/typescript/dist/test/support/fake-push.js";
import { RealServer } from "../../../sdk/typescript/dist/test/support/real-server.js";
import { launch, version } from "../../harness/browser.mjs";
import { front, printed } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const PAGE = `<!doctype html><title>The service worker</title><script type="module">
  window.told = [];
  navigator.serviceWorker.addEventListener("message", ({ data }) => window.told.push(data));
  await navigator.serviceWorker.register("/sw.js");
  window.registration = await navigator.serviceWorker.ready;
</script>`;

const WAIT_MS_MAX = 30_000;
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));

const keys = createECDH("prime256v1");
const publicKey = keys.generateKeys("base64url");
const service = await new PushService().start();
const server = await new RealServer({
  TIDINGS_WEB_PUSH_PUBLIC_KEY: publicKey,
  TIDINGS_WEB_PUSH_PRIVATE_KEY: keys.getPrivateKey("base64url"),
  TIDINGS_WEB_PUSH_SUBJECT: "mailto:ops@example.com",
  TIDINGS_WEB_PUSH_SERVICES: service.url,
}).start();
const [ada, ben] = await server.users("ada", "ben");
const open = (user) => connect({ url: server.url, token: async () => server.token(user), WebSocket });

// Chromium has no push service here: the subscription is a stand-in, and what its service gets is handed to the worker by DevTools.
const pushManager = new FakePushManager(service.url);
const client = await open(ada);
await client.offlinePush.subscribe({ publicKey, registration: { pushManager } });
await client.close();
const sender = await open(ben);
const chat = sender.direct(ada);

const pages = await front({ "/": PAGE, "/sw.js": printed("sdk/typescript/README.md")("sw.js") });
const browser = await launch();
const context = await browser.newContext();
await context.grantPermissions(["notifications"], { origin: pages.origin });
const page = await context.newPage();
const complaints = [];
page.on("pageerror", (error) => complaints.push(String(error)));
const devtools = await context.newCDPSession(page);
const registered = new Promise((resolve) =>
  devtools.on("ServiceWorker.workerRegistrationUpdated", ({ registrations: [first] }) => first && resolve(first.registrationId)),
);
await devtools.send("ServiceWorker.enable");
await page.goto(pages.origin);
await page.waitForFunction(() => window.registration?.active?.state === "activated");
const registrationId = await registered;
const [worker] = context.serviceWorkers();
// Counts what the worker has done with its pushes, and keeps the titles that it showed.
await worker.evaluate(() => {
  self.done = 0;
  self.titles = [];
  const { showNotification } = ServiceWorkerRegistration.prototype;
  ServiceWorkerRegistration.prototype.showNotification = function (title, ...more) {
    self.titles.push(String(title));
    return showNotification.call(this, title, ...more);
  };
  const { waitUntil } = ExtendableEvent.prototype;
  ExtendableEvent.prototype.waitUntil = function (work) {
    waitUntil.call(this, work);
    void work.finally(() => (self.done += 1));
  };
});
let pushes = 0;

/** Hands the server's next push to the worker, and waits until that is done; what was in it. */
async function push() {
  const data = pushManager.subscription.read(await service.next());
  await devtools.send("ServiceWorker.deliverPushMessage", { origin: pages.origin, registrationId, data });
  pushes += 1;
  for (const end = Date.now() + WAIT_MS_MAX; (await worker.evaluate(() => self.done)) < pushes; await pause()) assert(Date.now() < end, "the worker does not end");
  return JSON.parse(data);
}

const shown = () => page.evaluate(async () => {
  const all = await window.registration.getNotifications();
  return all.map(({ title, body, tag, silent, data }) => ({ title, body, tag, silent, data }));
});

async function shows(what, expected) {
  for (const end = Date.now() + WAIT_MS_MAX; JSON.stringify(await shown().then((all) => all.map(({ body }) => body))) !== JSON.stringify(expected); ) {
    assert(Date.now() < end, `${what}: it shows ${JSON.stringify(await shown())}, not ${expected}`);
    await pause();
  }
  return shown();
}

const failed = await run(`the service worker in ${version()}`, [
  ["a message is shown, with its conversation", async () => {
    await chat.send({ text: "are you there?" });
    await push();
    const [{ title, tag, silent, data }] = await shows("a message", ["are you there?"]);
    assert(title === ben && tag.length > 0 && !silent && data.seq === 1 && data.conversation === chat.id, { title, tag, silent, data });
  }],
  ["the next one takes its place", async () => {
    await chat.send({ text: "hello?" });
    await push();
    await shows("the newest", ["hello?"]);
  }],
  ["what is read on another device goes, and nothing takes its place", async () => {
    await server.api("PUT", `/v1/users/${ada}/conversations/${encodeURIComponent(chat.id)}/read`, { seq: 2 });
    const payload = await push();
    assert(payload.removed === true && payload.title === undefined, payload);
    await shows("after it was read", []);
    const titles = await worker.evaluate(() => self.titles);
    assert(JSON.stringify(titles) === JSON.stringify([ben, ben]), titles);
  }],
  ["what is recalled is replaced without a sound", async () => {
    const { seq } = await chat.send({ text: "not for you" });
    await push();
    await shows("before it is recalled", ["not for you"]);
    await chat.recall(seq);
    await push();
    const [{ title, silent }] = await shows("the recall", ["Message deleted"]);
    assert(title === ben && silent, { title, silent });
  }],
  ["a click closes it, and the page opens the conversation", async () => {
    await worker.evaluate(async () => {
      const [notification] = await self.registration.getNotifications();
      self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
    });
    await page.waitForFunction(() => window.told.length === 1);
    const told = await page.evaluate(() => window.told);
    assert(JSON.stringify(told) === JSON.stringify([{ conversation: chat.id, seq: 3 }]), told);
    await shows("after the click", []);
  }],
  ["the page has nothing to complain of", async () => assert(complaints.length === 0, complaints)],
]);
await browser.close();
pages.end();
await sender.close();
await server.remove();
service.end();
process.exit(failed);
