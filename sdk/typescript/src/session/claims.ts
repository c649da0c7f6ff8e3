import { base64urlBytes } from "../base64url.js";
import { textOfBytes } from "../platform.js";

/** What a client reads in its own token. The server verifies tokens; this only tells when to ask for the next. */
export interface Claims {
  readonly sub?: string;
  /** Seconds since 1970 UTC. */
  readonly exp?: number;
  readonly iat?: number;
}

export function claimsOf(token: string): Claims {
  try {
    const claims: unknown = JSON.parse(textOfBytes(base64urlBytes(token.split(".")[1] ?? "")));
    if (claims === null || typeof claims !== "object") return {};
    const { sub, exp, iat } = claims as { sub?: unknown; exp?: unknown; iat?: unknown };
    return {
      ...(typeof sub === "string" && { sub }),
      ...(typeof exp === "number" && { exp }),
      ...(typeof iat === "number" && { iat }),
    };
  } catch {
    return {}; // no JWT: the server says what is wrong with it
  }
}

const REFRESH_SOONEST_MS = 10_000;
// Longer timers overflow in browsers and in Node, and would fire at once.
const REFRESH_LATEST_MS = 2 ** 31 - 1;

/**
 * When to refresh a token that was fetched just now: after four fifths of its life. Its life is the shorter of what the claims say (right
 * with any clock, too long for a token that the app had kept) and what is left by this device's clock (wrong by as much as the clock).
 */
export function refreshInMs(claims: Claims, expiresAtMs: number | undefined, now: number): number | undefined {
  const lives: number[] = [];
  if (expiresAtMs !== undefined && expiresAtMs > now) lives.push(expiresAtMs - now);
  if (claims.exp !== undefined && claims.iat !== undefined) lives.push((claims.exp - claims.iat) * 1000);
  if (lives.length === 0) return expiresAtMs === undefined ? undefined : REFRESH_SOONEST_MS * 6;
  return Math.min(REFRESH_LATEST_MS, Math.max(REFRESH_SOONEST_MS, Math.min(...lives) * 0.8));
}
