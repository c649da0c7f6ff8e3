// The address's hash is the route: `#/users/alice?conversation=demo`.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function readRoute(hash: string): Route {
  const [where = "", query = ""] = hash.replace(/^#\/?/u, "").split("?", 2);
  return { parts: where.split("/").filter((part) => part !== "").map(decode), query: new URLSearchParams(query) };
}

export function href(...parts: readonly (string | number)[]): string {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

export function go(...parts: readonly (string | number)[]): void {
  location.hash = href(...parts);
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => readRoute(location.hash));
  useEffect(() => {
    const look = (): void => setRoute(readRoute(location.hash));
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  return route;
}
