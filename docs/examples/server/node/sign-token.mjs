import { createHmac } from "node:crypto";

/** A token by which the app of `user` binds and calls for `seconds`; `key` is the setting `token_key`. */
export function signToken(key, user, seconds = 3600) {
  const encode = (part) => Buffer.from(JSON.stringify(part)).toString("base64url");
  const now = Math.floor(Date.now() / 1000);
  const unsigned = `${encode({ alg: "HS256", typ: "JWT" })}.${encode({ sub: user, iat: now, exp: now + seconds })}`;
  return `${unsigned}.${createHmac("sha256", key).update(unsigned).digest("base64url")}`;
}
