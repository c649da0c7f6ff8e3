const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** The bytes that these characters stand for; throws for others than base64url has. */
export function base64urlBytes(text: string): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(Math.floor((text.length * 3) / 4));
  if (text.length % 4 === 1) throw new TypeError("base64url of a length that no bytes have");
  let bits = 0;
  let count = 0;
  for (let index = 0; index < text.length; index++) {
    const six = LETTERS.indexOf(text.charAt(index));
    if (six === -1) throw new TypeError(`base64url has no ${text.charAt(index)}`);
    bits = ((bits << 6) | six) & 0xffff;
    if (index % 4 !== 0) bytes[count++] = (bits >> (6 - 2 * (index % 4))) & 0xff;
  }
  return bytes;
}
