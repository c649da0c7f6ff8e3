// The TypeScript client in a page that esbuild bundles, as its README says.
import { version } from "../../harness/browser.mjs";
import { addPeople, front, printed, Project, say, token, Visitor } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import esbuild from "esbuild/package.json" with { type: "json" };

const project = new Project("esbuild");
project.write("page.js", printed("sdk/typescript/README.md")("page.js"));
const HTML = '<!doctype html><title>esbuild</title><ul></ul><form><input name="text"></form><script type="module" src="/dist/page.js"></script>';
await addPeople();
const visitor = await Visitor.open();

const failed = await run(`esbuild ${esbuild.version} in ${version()}`, [
  ["the README's page is bundled, and messages come and go", async () => {
    await project.run("esbuild", "page.js", "--bundle", "--format=esm", "--minify", "--sourcemap", "--outfile=dist/page.js");
    const pages = await front({ "/": HTML, "/dist/page.js": project.read("dist/page.js"), "/token": token("alice") });
    await visitor.visit(pages.origin);
    await visitor.talks("bundled");
    await visitor.close();
    pages.end();
  }],
  ["a worker of a page, which has no document, connects and hears", async () => {
    project.write("worker.js", `
      import { connect, textOf } from "@tidings/client";
      const tidings = await connect({ url: "/", token: async () => (await fetch("/token")).text() });
      tidings.on("message", (message) => postMessage(textOf(message)));
      postMessage(tidings.user);
    `);
    await project.run("esbuild", "worker.js", "--bundle", "--format=esm", "--outfile=dist/worker.js");
    const page = '<!doctype html><title>worker</title><ol></ol><script>new Worker("/worker.js", { type: "module" }).onmessage = ({ data }) => document.body.append(data, " ")</script>';
    const pages = await front({ "/": page, "/worker.js": project.read("dist/worker.js"), "/token": token("alice") });
    await visitor.visit(pages.origin);
    await visitor.sees("alice");
    await say("bob", "alice", "to the worker");
    await visitor.sees("to the worker");
    await visitor.close();
    pages.end();
  }],
  ["its source map leads to the package's TypeScript", async () => {
    const { sources, sourcesContent } = JSON.parse(project.read("dist/page.js.map"));
    const connect = sources.findIndex((source) => source.endsWith("@tidings/client/src/connect.ts"));
    assert(sourcesContent[connect]?.includes("export async function connect("), sources);
  }],
  ["what a page does not use is not in its bundle", async () => {
    project.write("small.js", 'import { textOf } from "@tidings/client"; console.log(textOf({ body: { text: "x" } }));');
    await project.run("esbuild", "small.js", "--bundle", "--format=esm", "--minify", "--outfile=dist/small.js");
    const [small, page] = ["small", "page"].map((name) => project.read(`dist/${name}.js`).length);
    console.log(`# ${small} bytes with textOf alone, ${page} with the client`);
    assert(small < 1_000, small);
  }],
]);
await visitor.browser.close();
process.exit(failed);
