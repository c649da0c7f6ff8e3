import { fileURLToPath } from "node:url";

/** A file of the repository; compiled tests lie in dist/test/support. */
export function repositoryFile(path: string): string {
  return fileURLToPath(new URL(`../../../../../${path}`, import.meta.url));
}
