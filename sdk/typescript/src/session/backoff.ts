const FIRST_MS = 500;
const LONGEST_MS = 30_000;
// A wait of nothing would be no wait: the clients of one lost server would all try again in the same moment.
const SHORTEST_MS = 100;

/** Full jitter: a random time up to half a second, doubled with each failure, up to half a minute. `random` is in [0, 1). */
export function backoffMs(failures: number, random: number): number {
  const longest = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 16));
  return Math.max(SHORTEST_MS, Math.round(random * longest));
}
