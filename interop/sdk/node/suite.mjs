// The TypeScript client in Node, as its README says: ES modules, CommonJS, and TypeScript.
import { addPeople, printed, Project, say, token } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const code = printed("sdk/typescript/README.md");
const project = new Project("node");
await addPeople();
Object.assign(process.env, { TOKEN: token("alice"), PEER: "bob" });

const CONSUMER = `
import { connect, textOf, type Tidings } from "@tidings/client";
import { useTimeline } from "@tidings/react";
export const open = (): Promise<Tidings> => connect({ url: "https://chat", token: async () => null });
export const count = (id: string): number => useTimeline(id).items.filter((item) => item.is === "message" && textOf(item) !== undefined).length;
`;

/** Starts a program of the README; what it says when Bob writes. */
async function hears(name, text) {
  await project.start(/alice: hello/, name);
  await Promise.all([project.says(new RegExp(`bob: ${text}`)), say("bob", "alice", text)]);
}

const failed = await run(`Node ${process.versions.node}`, [
  ["the README's program runs as an ES module", async () => {
    project.write("chat.mjs", code("chat.mjs"));
    await hears("chat.mjs", "to a module");
  }],
  ["the README's program for CommonJS runs", async () => {
    project.write("chat.cjs", code("chat.cjs"));
    await hears("chat.cjs", "to CommonJS");
  }],
  ["import() brings the same to CommonJS, in any Node", async () => {
    project.write("import.cjs", 'import("@tidings/client").then(({ connect }) => console.log(typeof connect));');
    assert((await project.run("import.cjs")) === "function\n", "a function");
  }],
  ["the types are right by the rules of Node and of bundlers", async () => {
    for (const ending of ["ts", "mts"]) project.write(`consumer.${ending}`, CONSUMER);
    project.write("consumer.cts", 'export const open = async () => (await import("@tidings/client")).connect({ url: "https://chat", token: async () => null });\n');
    const ways = [["nodenext", "nodenext"], ["esnext", "bundler"]];
    await Promise.all(ways.map(async ([module, moduleResolution]) => {
      const compilerOptions = { target: "es2022", lib: ["es2022", "dom"], types: [], module, moduleResolution, strict: true, exactOptionalPropertyTypes: true, noEmit: true };
      project.write(`${moduleResolution}.json`, JSON.stringify({ compilerOptions, include: ["consumer.*"] }));
      await project.run("tsc", "-p", `${moduleResolution}.json`);
    }));
  }],
]);
project.end();
process.exit(failed);
