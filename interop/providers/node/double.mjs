// The providers' push services, as far as a sender sees them: APNs on node:http2, FCM and Huawei Push Kit with their authorization servers and a
// browser's push service on node:http. Tokens are verified by jose; Web Push is decrypted by http_ece, with keys that only this program has.
//
// One JSON line for each request tells what came. `POST /plan` on the control port sets the next answers of a provider:
// `{"apns": [{"status": 503, "headers": {…}, "body": {…}, "hang": false, "after_ms": 0}]}`; without a plan a request is accepted.
import { createECDH, generateKeyPairSync, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { createServer as createHttp2Server, createSecureServer } from "node:http2";
import { readFileSync } from "node:fs";
import ece from "http_ece";
import { createRequire } from "node:module";
import { exportPKCS8, importJWK, jwtVerify } from "jose";

const tell = (line) => console.log(JSON.stringify(line));
const version = (name) => createRequire(import.meta.url)(`${name}/package.json`).version;
const plans = { apns: [], fcm: [], web_push: [], oauth: [], huawei: [], huawei_oauth: [] };
const base64url = (bytes) => Buffer.from(bytes).toString("base64url");

// The keys that Apple and Google would hand out, and the sender's own for Web Push.
const apple = generateKeyPairSync("ec", { namedCurve: "P-256" });
const google = generateKeyPairSync("rsa", { modulusLength: 2048 });
const vapid = createECDH("prime256v1");
vapid.generateKeys();
const browser = createECDH("prime256v1");
browser.generateKeys();
const secret = randomBytes(16);
const accessTokens = new Map();
// The app as Huawei's console shows it. The secret has characters that a form must escape.
const huaweiApp = { id: "100123456", secret: "s3cret+with/odd=&characters" };
const huaweiTokens = new Set();

async function read(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Answers as planned, or as a provider that accepts; tells what came. */
async function answer(provider, response, accepted, came) {
  const { status, headers = {}, body, hang = false, after_ms: delay = 0 } = { ...accepted, ...plans[provider].shift() };
  tell({ provider, status, ...came });
  if (hang) return;
  if (delay > 0) await new Promise((done) => setTimeout(done, delay));
  response.writeHead(status, headers);
  response.end(body === undefined ? undefined : JSON.stringify(body));
}

async function verified(check) {
  try {
    return { jwt: await check() };
  } catch (error) {
    return { error: String(error) };
  }
}

async function apns(request, response) {
  const body = await read(request);
  const peer = request.socket.getPeerCertificate?.();
  const who = peer?.subject
    ? { certificate: peer.subject.CN, authorized: request.socket.authorized }
    : await verified(async () => {
        const { protectedHeader, payload } = await jwtVerify(request.headers.authorization.replace(/^bearer /, ""), apple.publicKey, { algorithms: ["ES256"] });
        return { ...protectedHeader, ...payload };
      });
  const came = { http: request.httpVersion, method: request.method, path: request.url, headers: request.headers, size: body.length, body: JSON.parse(body), ...who };
  await answer("apns", response, { status: 200, headers: { "apns-id": request.headers["apns-id"] } }, came);
}

async function fcm(request, response) {
  const body = await read(request);
  if (request.url === "/token") {
    const form = new URLSearchParams(body.toString());
    const who = await verified(async () => {
      const { protectedHeader, payload } = await jwtVerify(form.get("assertion"), google.publicKey, {
        algorithms: ["RS256"],
        audience: `http://127.0.0.1:${fcmServer.address().port}/token`,
        issuer: "sender@project.example",
      });
      return { ...protectedHeader, ...payload };
    });
    const token = `access-${randomBytes(8).toString("hex")}`;
    accessTokens.set(token, true);
    const granted = { access_token: token, expires_in: 3600, token_type: "Bearer" };
    return answer("oauth", response, { status: who.error ? 401 : 200, body: granted }, { grant: form.get("grant_type"), type: request.headers["content-type"], ...who });
  }
  const known = accessTokens.has(request.headers.authorization?.replace(/^Bearer /, ""));
  const came = { method: request.method, path: request.url, headers: request.headers, known, size: body.length, body: JSON.parse(body) };
  const accepted = known ? { status: 200, body: { name: "projects/project-7/messages/1" } } : { status: 401, body: { error: { status: "UNAUTHENTICATED" } } };
  return answer("fcm", response, accepted, came);
}

async function huawei(request, response) {
  const body = await read(request);
  if (request.url === "/oauth2/v3/token") {
    const form = Object.fromEntries(new URLSearchParams(body.toString()));
    const fits = form.grant_type === "client_credentials" && form.client_id === huaweiApp.id && form.client_secret === huaweiApp.secret;
    const token = `huawei/${randomBytes(8).toString("hex")}+==`;
    if (fits) huaweiTokens.add(token);
    const granted = { status: 200, body: { access_token: token, expires_in: 3600, token_type: "Bearer" } };
    const refused = { status: 400, body: { error: 1101, sub_error: 20042, error_description: "client_secret is wrong" } };
    return answer("huawei_oauth", response, fits ? granted : refused, { fits, type: request.headers["content-type"] });
  }
  const known = huaweiTokens.has(request.headers.authorization?.replace(/^Bearer /, ""));
  const came = { method: request.method, path: request.url, headers: request.headers, known, size: body.length, body: JSON.parse(body) };
  const requestId = randomBytes(8).toString("hex");
  const accepted = { status: 200, body: { code: "80000000", msg: "Success", requestId } };
  const refused = { status: 401, body: { code: "80200001", msg: "Oauth authentication error.", requestId } };
  return answer("huawei", response, known ? accepted : refused, came);
}

async function webPush(request, response) {
  const body = await read(request);
  const { authorization = "" } = request.headers;
  const [, token, key] = /^vapid t=([^,]+), k=(.+)$/.exec(authorization) ?? [];
  const who = await verified(async () => {
    const point = Buffer.from(key, "base64url");
    const publicKey = await importJWK({ kty: "EC", crv: "P-256", x: base64url(point.subarray(1, 33)), y: base64url(point.subarray(33)) }, "ES256");
    const { payload } = await jwtVerify(token, publicKey, { algorithms: ["ES256"], audience: `http://127.0.0.1:${webPushServer.address().port}` });
    return { ...payload, key };
  });
  let shown;
  try {
    shown = JSON.parse(ece.decrypt(body, { version: "aes128gcm", privateKey: browser, authSecret: base64url(secret) }));
  } catch (error) {
    shown = { undecipherable: String(error) };
  }
  const came = { method: request.method, path: request.url, headers: request.headers, size: body.length, body: shown, ...who };
  return answer("web_push", response, { status: 201, headers: { location: "/message/1" } }, came);
}

const safely = (serve) => (request, response) => serve(request, response).catch((error) => {
  tell({ provider: "double", error: String(error?.stack ?? error) });
  response.destroy?.();
});
const listen = (server) => new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));

const apnsServer = createHttp2Server(safely(apns));
const fcmServer = createServer(safely(fcm));
const webPushServer = createServer(safely(webPush));
const huaweiServer = createServer(safely(huawei));
const control = createServer(async (request, response) => {
  const plan = JSON.parse(await read(request));
  for (const [provider, answers] of Object.entries(plan)) plans[provider] = answers;
  response.writeHead(204).end();
});
const ports = { apns: await listen(apnsServer), fcm: await listen(fcmServer), web_push: await listen(webPushServer), huawei: await listen(huaweiServer), control: await listen(control) };
if (process.env.APNS_TLS) {
  const { key, cert, ca } = JSON.parse(process.env.APNS_TLS);
  const files = { key: readFileSync(key), cert: readFileSync(cert), ca: readFileSync(ca) };
  ports.apns_tls = await listen(createSecureServer({ ...files, requestCert: true, rejectUnauthorized: true }, safely(apns)));
}
tell({
  client: `node:http2 of Node ${process.versions.node}, http_ece ${version("http_ece")}, jose ${version("jose")}`,
  ports,
  apple_key: await exportPKCS8(apple.privateKey),
  service_account: {
    type: "service_account",
    project_id: "project-7",
    private_key_id: "key-1",
    private_key: await exportPKCS8(google.privateKey),
    client_email: "sender@project.example",
    token_uri: `http://127.0.0.1:${ports.fcm}/token`,
  },
  huawei_app: huaweiApp,
  vapid: { private: base64url(vapid.getPrivateKey()), public: base64url(vapid.getPublicKey()) },
  subscription_keys: { p256dh: base64url(browser.getPublicKey()), auth: base64url(secret) },
});
