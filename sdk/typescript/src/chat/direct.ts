// The ids of direct conversations: both users' ids, the smaller (byte by byte) first, joined by `~`.

export function directId(me: string, other: string): string {
  return isSmaller(me, other) ? `${me}~${other}` : `${other}~${me}`;
}

/** The other user of a direct conversation of `me`; undefined: it is none. */
export function directPeer(conversation: string, me: string): string | undefined {
  const [first, second, ...more] = conversation.split("~");
  if (first === undefined || second === undefined || more.length > 0) return undefined;
  if (first === me) return second;
  return second === me ? first : undefined;
}

/** Whether it is a direct conversation of others: what reaches an agent of an account that is one of them. */
export function isOfOthers(conversation: string, me: string): boolean {
  const users = conversation.split("~");
  return users.length === 2 && !users.includes(me);
}

// JavaScript compares UTF-16 units, which sorts some characters otherwise than their bytes.
function isSmaller(a: string, b: string): boolean {
  const [left, right] = [new TextEncoder().encode(a), new TextEncoder().encode(b)];
  for (let n = 0; n < Math.min(left.length, right.length); n++) {
    const difference = (left[n] ?? 0) - (right[n] ?? 0);
    if (difference !== 0) return difference < 0;
  }
  return left.length < right.length;
}
