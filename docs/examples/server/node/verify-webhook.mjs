import { createHmac, timingSafeEqual } from "node:crypto";

/** Whether `body`, a Buffer of the bytes as they came, was signed by Tidings within the last minutes. */
export function verify(secret, headers, body, now = Date.now() / 1000, toleranceSeconds = 300) {
  const timestamp = headers["tidings-timestamp"] ?? "";
  const signature = Buffer.from(headers["tidings-signature"] ?? "");
  if (!/^[0-9]+$/.test(timestamp)) return false;
  const expected = Buffer.from(createHmac("sha256", secret).update(`${timestamp}.`).update(body).digest("hex"));
  const fresh = Math.abs(now - Number(timestamp)) <= toleranceSeconds;
  return signature.length === expected.length && timingSafeEqual(signature, expected) && fresh;
}
