// The files of the chat page and of the console that are committed, and compiled into the server, are what their sources build.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

// What a first visit to a page may load, compressed.
const BYTES_MAX = 150_000;

const web = fileURLToPath(new URL("../../../web", import.meta.url));
const built = join(process.env.INTEROP_TMP, "dist");

function tool(name, ...given) {
  try {
    execFileSync("node", [join(web, "node_modules", name), ...given], { cwd: web, encoding: "utf8" });
  } catch ({ stdout, stderr }) {
    throw new Error(`${name}: ${stdout}${stderr}`);
  }
}

const { version } = JSON.parse(readFileSync(join(web, "node_modules/vite/package.json"), "utf8"));

function filesOf(folder) {
  const names = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return new Map(names.map((entry) => join(entry.parentPath, entry.name)).map((path) => [path.slice(folder.length + 1), readFileSync(path)]));
}

process.exit(await run(`Vite ${version}`, [
  ["the types of the pages are right", async () => void tool("typescript/bin/tsc", "--noEmit")],
  ["web/dist is what the sources build: else run `make web`", async () => {
    tool("vite/bin/vite.js", "build", "--outDir", built, "--emptyOutDir", "--logLevel", "warn");
    tool("vite/bin/vite.js", "build", "--mode", "console", "--outDir", built, "--logLevel", "warn");
    const [expected, committed] = [filesOf(built), filesOf(join(web, "dist"))];
    assert(JSON.stringify([...expected.keys()].sort()) === JSON.stringify([...committed.keys()].sort()), [...committed.keys()]);
    for (const [name, content] of expected) assert(content.equals(committed.get(name)), `${name} is of other sources`);
  }],
  ["a first visit to either page loads less than 150 kB, and nothing of the other", async () => {
    const files = [...filesOf(join(web, "dist"))];
    for (const page of ["chat page", "console"]) {
      const own = files.filter(([name]) => name.startsWith("console/") === (page === "console"));
      const sizes = own.map(([name, content]) => [name, gzipSync(content, { level: 9 }).length]);
      const sum = sizes.reduce((total, [, size]) => total + size, 0);
      console.log(`# the ${page}, compressed: ${sum} bytes (${sizes.map(([name, size]) => `${name} ${size}`).join(", ")})`);
      assert(own.length === 3 && sum < BYTES_MAX, sum);
      const loaded = own.map(([, content]) => content.toString()).join("\n");
      // Words of the one page that the other has no use for.
      const foreign = page === "console" ? ["/v1/connect", "indexedDB", "/page/app"] : ["/v1/admin/", "tidings_lane_", "/console/app"];
      for (const word of foreign) assert(!loaded.includes(word), `the ${page} holds ${word}`);
    }
  }],
]));
