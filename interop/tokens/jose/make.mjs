// Tokens by jose.
import { createHmac, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { SignJWT, UnsecuredJWT, exportJWK, exportSPKI, generateKeyPair } from "jose";

const { secret, user, audience, issuer } = JSON.parse(readFileSync(0, "utf8"));
const version = JSON.parse(
  readFileSync(createRequire(import.meta.url).resolve("jose").replace(/\/dist\/.*/, "/package.json"), "utf8"),
).version;
const name = randomBytes(4).toString("hex");
const now = Math.floor(Date.now() / 1000);
const shared = new TextEncoder().encode(secret);
const algorithms = ["RS256", "ES256", "EdDSA"];
const pair = (algorithm) => generateKeyPair(algorithm, { extractable: true });
const keys = {}, others = {}, published = [];
for (const algorithm of algorithms) {
  keys[algorithm] = await pair(algorithm);
  others[algorithm] = await pair(algorithm);
  const card = await exportJWK(keys[algorithm].publicKey);
  published.push({ ...card, kid: `${algorithm}-${name}`, use: "sig", alg: algorithm });
}

const claims = (changes = {}) => {
  const all = { sub: user, iat: now, exp: now + 600, aud: audience, iss: issuer, ...changes };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
};
const sign = (algorithm, { key, header, changes, kid = `${algorithm}-${name}` } = {}) => {
  const headers = { alg: algorithm, ...(algorithm.startsWith("HS") || !kid ? {} : { kid }), ...header };
  const crit = headers.crit && Object.fromEntries(headers.crit.map((extension) => [extension, true]));
  return new SignJWT(claims(changes))
    .setProtectedHeader(headers)
    .sign(key ?? keys[algorithm]?.privateKey ?? shared, crit ? { crit } : undefined);
};

const tokens = [];
const good = async (what, token) => tokens.push({ name: what, token: await token, takes: true });
const bad = async (what, token, code) => tokens.push({ name: what, token: await token, ...(code ? { code } : {}) });
for (const algorithm of ["HS256", ...algorithms]) await good(algorithm, sign(algorithm));
for (const algorithm of algorithms) await good(`${algorithm} without a \`kid\``, sign(algorithm, { kid: null }));
await good("EdDSA with several audiences", sign("EdDSA", { changes: { aud: ["shop", audience] } }));
for (const algorithm of ["HS256", ...algorithms]) {
  const other = others[algorithm]?.privateKey ?? new TextEncoder().encode("another secret of thirty-two bytes or more");
  await bad(`${algorithm} that has expired`, sign(algorithm, { changes: { exp: now - 60 } }), "token_expired");
  await bad(`${algorithm} that another key signed`, sign(algorithm, { key: other }));
  await bad(`${algorithm} with \`crit\``, sign(algorithm, { header: { crit: ["x"], x: 1 } }));
  const whole = await sign(algorithm);
  await bad(`${algorithm} without its signature`, whole.slice(0, whole.lastIndexOf(".") + 1));
}
for (const [what, changes] of [
  ["no `exp`", { exp: null }],
  ["`exp` in milliseconds", { exp: (now + 600) * 1000 }],
  ["`nbf` ahead", { nbf: now + 300 }],
  ["another audience", { aud: "shop" }],
  ["no audience", { aud: null }],
  ["another issuer", { iss: "https://elsewhere.example" }],
  ["no user", { sub: null }],
]) await bad(`ES256, ${what}`, sign("ES256", { changes }));
await bad("HS512, which is not taken", sign("HS512"));
const curve = await pair("ES384");
await bad("ES384, which is not taken", sign("ES384", { key: curve.privateKey }));
await bad("alg none", new UnsecuredJWT(claims()).encode());
const byHand = (header, text) => {
  const encoded = (part) => Buffer.from(JSON.stringify(part)).toString("base64url");
  const signed = `${encoded(header)}.${encoded(claims())}`;
  return `${signed}.${createHmac("sha256", text).update(signed).digest("base64url")}`;
};
const pem = await exportSPKI(keys.RS256.publicKey);
for (const [what, text] of [["PEM", pem], ["JWK's modulus", published[0].n]]) {
  await bad(`HS256 by the public key's ${what}`, byHand({ alg: "HS256", kid: `RS256-${name}` }, text));
}
console.log(JSON.stringify({ library: `jose ${version}`, jwks: { keys: published }, tokens }));
