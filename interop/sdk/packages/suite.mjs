// The packed packages, as those judge them who pack for others, and in an empty project of npm.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const path = (name) => fileURLToPath(new URL(`../../../${name}`, import.meta.url));
const PACKAGES = { client: "typescript", react: "react" };
const NAMES = Object.keys(PACKAGES);
const source = (name) => path(`sdk/${PACKAGES[name]}`);
const unpacked = (name) => path(`interop/sdk/projects/node_modules/@tidings/${name}`);
const manifest = (name) => JSON.parse(readFileSync(join(unpacked(name), "package.json"), "utf8"));
const packed = (name) => join(process.env.PACKED ?? source(name), `tidings-${name}-${manifest(name).version}.tgz`);

function say(folder, program, ...given) {
  try {
    return execFileSync(program, given, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  } catch ({ stdout, stderr }) {
    throw new Error(`${program} ${given.join(" ")}: ${stdout}${stderr}`);
  }
}
const tool = (name, ...given) => say(".", path(`interop/node_modules/.bin/${name}`), ...given);

process.exit(await run(`publint ${tool("publint", "--version").trim().split(" ").pop()}, attw ${tool("attw", "--version").match(/v([\d.]+)/)[1]}, npm ${say(".", "npm", "--version").trim()}`, [
  ["publint finds nothing", async () => NAMES.forEach((name) => tool("publint", "run", packed(name), "--strict"))],
  // The packages are ES modules: that TypeScript may want `import()` of them in CommonJS is so.
  ["attw finds that every way to import them has its types", async () => {
    for (const name of NAMES) tool("attw", packed(name), "--ignore-rules", "cjs-resolves-to-esm");
  }],
  ["they hold what the sources compile to, with types, licence and README, and nothing else", async () => {
    const files = (folder) => readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1)).sort();
    for (const name of NAMES) {
      const compiled = files(join(source(name), "src")).flatMap((file) => ["d.ts", "js", "js.map"].map((ending) => `dist/src/${file.replace(/ts$/, ending)}`));
      const expected = [...compiled, "LICENSE", "README.md", "package.json"].sort();
      const found = files(unpacked(name));
      const wrong = [...found.filter((file) => !expected.includes(file)), ...expected.filter((file) => !found.includes(file))];
      assert(wrong.length === 0, `of no source, or missing (rm -r sdk/${PACKAGES[name]}/dist): ${wrong}`);
      assert(readFileSync(join(unpacked(name), "LICENSE")).equals(readFileSync(path("LICENSE"))), "the repository's licence");
    }
  }],
  ["each source map has its source in it, at a path within the package", async () => {
    for (const name of NAMES) {
      const folder = join(unpacked(name), "dist/src");
      for (const file of readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".map"))) {
        const { sources, sourcesContent } = JSON.parse(readFileSync(join(folder, file), "utf8"));
        const of = join(dirname(join(folder, file)), sources[0]);
        assert(sources.length === 1 && of.startsWith(join(unpacked(name), "src/")), sources);
        assert(sourcesContent?.[0] === readFileSync(of.replace(unpacked(name), source(name)), "utf8"), file);
      }
    }
  }],
  ["npm installs them in an empty project without a word, with one React", async () => {
    const folder = join(process.env.INTEROP_TMP, "project");
    mkdirSync(folder);
    // What a registry would answer with, packed here, so that no network is needed.
    const others = ["react", "ws"].map((name) => join(folder, say(folder, "npm", "pack", "--silent", path(`interop/node_modules/${name}`)).trim()));
    const said = say(folder, "npm", "install", "--offline", "--no-audit", "--no-fund", ...NAMES.map(packed), ...others);
    assert(!/warn/i.test(said), said);
    const { dependencies, problems } = JSON.parse(say(folder, "npm", "ls", "--all", "--json"));
    assert(problems === undefined && Object.keys(dependencies).sort().join() === "@tidings/client,@tidings/react,react,ws", { dependencies, problems });
    assert(!existsSync(join(folder, "node_modules/@tidings/react/node_modules")), "one React");
    const program = 'import { connect } from "@tidings/client"; import { useConnect } from "@tidings/react"; console.log(typeof connect, typeof useConnect)';
    assert(say(folder, "node", "--input-type=module", "--eval", program) === "function function\n", "both are there");
  }],
]));
