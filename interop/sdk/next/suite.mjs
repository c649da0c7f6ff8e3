// The React hooks in Next, as their README says: a production build with a page of the server and a client component.
// Long: Next builds for a quarter of a minute
import { version } from "../../harness/browser.mjs";
import { addPeople, printed, Project, Visitor } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import next from "next/package.json" with { type: "json" };
import { readFileSync } from "node:fs";

const code = printed("sdk/react/README.md");
const project = new Project("next");
for (const name of ["app/chat.tsx", "app/page.tsx", "app/token/route.js", "next.config.mjs"]) project.write(name, code(name));
project.write("app/app.tsx", code("app.tsx"));
project.write("sign-token.mjs", readFileSync(new URL("../../../docs/examples/server/node/sign-token.mjs", import.meta.url), "utf8"));
project.write("app/layout.tsx", 'export default function Layout({ children }: { children: React.ReactNode }) { return <html lang="en"><body>{children}</body></html>; }\n');
// As create-next-app writes it, for a program of its own.
const compilerOptions = {
  target: "ES2017", lib: ["dom", "dom.iterable", "esnext"], module: "esnext", moduleResolution: "bundler", jsx: "react-jsx", strict: true, noEmit: true,
  skipLibCheck: true, esModuleInterop: true, resolveJsonModule: true, isolatedModules: true, incremental: true, allowJs: true, plugins: [{ name: "next" }],
};
project.write("tsconfig.json", JSON.stringify({ compilerOptions, include: ["next-env.d.ts", "**/*.ts", "**/*.tsx", ".next/types/**/*.ts"], exclude: ["node_modules"] }));
await addPeople();
const visitor = await Visitor.open();

const failed = await run(`Next ${next.version} in ${version()}`, [
  ["the README's files are built, types and all", async () => {
    const said = await project.run("next", "build");
    console.log(said.replace(/^/gm, "# "));
  }],
  ["the page comes from the server, and messages come and go", async () => {
    const [, address] = await project.start(/Local: +(http:\S+)/, "next", "start", "--port", "0", "--hostname", "127.0.0.1");
    const html = await (await fetch(address)).text();
    assert(html.includes("Connecting…"), html);
    await visitor.visit(address);
    await visitor.talks("from Next");
    await visitor.close();
  }],
]);
await visitor.browser.close();
project.end();
process.exit(failed);
