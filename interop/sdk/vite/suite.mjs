// The React hooks in Vite, as their README says: by its development server, and built.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { version } from "../../harness/browser.mjs";
import { addPeople, printed, Project, token, Visitor } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import vite from "vite/package.json" with { type: "json" };

const code = printed("sdk/react/README.md");
const project = new Project("vite");
project.write("index.html", '<!doctype html><title>Vite</title><div id="root"></div><script type="module" src="/src/main.tsx"></script>');
project.write("src/app.tsx", code("app.tsx"));
for (const name of ["src/main.tsx", "vite.config.mjs"]) project.write(name, code(name));
await addPeople();
const visitor = await Visitor.open();
const ADDRESS = /Local: +(http:\S+)/;
let development;

const failed = await run(`Vite ${vite.version} in ${version()}`, [
  ["the development server shows the README's page, and messages come and go", async () => {
    [, development] = await project.start(ADDRESS, "vite", "--port", "0");
    await visitor.visit(development, { token: token("alice") });
    await visitor.talks("in development");
    await visitor.close();
  }],
  ["the types of the project are right", async () => {
    const compilerOptions = {
      target: "es2022", lib: ["es2022", "dom", "dom.iterable"], module: "esnext", moduleResolution: "bundler", jsx: "react-jsx",
      strict: true, noEmit: true, allowImportingTsExtensions: true, skipLibCheck: false, types: [],
    };
    project.write("tsconfig.json", JSON.stringify({ compilerOptions, include: ["src"] }));
    await project.run("tsc");
  }],
  ["a production build shows it, too, without a warning", async () => {
    const said = await project.run("vite", "build", "--sourcemap");
    assert(!/warn|error/i.test(said), said);
    const [, built] = await project.start(ADDRESS, "vite", "preview", "--port", "0");
    assert(built !== development, "another server");
    await visitor.visit(built, { token: token("alice") });
    await visitor.talks("in production");
    await visitor.close();
  }],
  ["there is one React in it", async () => {
    const map = readdirSync(join(project.folder, "dist/assets")).find((name) => name.endsWith(".map"));
    const { sources } = JSON.parse(project.read(join("dist/assets", map)));
    const reacts = sources.filter((source) => source.includes("/react/cjs/react.production"));
    assert(reacts.length === 1, sources);
  }],
]);
await visitor.browser.close();
project.end();
process.exit(failed);
