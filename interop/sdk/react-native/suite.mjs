// The app of the React README in a runtime that has what React Native has.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { addPeople, api, printed, Project, say, token } from "../../harness/project.mjs";
import { assert } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";
import { Runtime } from "./runtime.mjs";
import react from "react/package.json" with { type: "json" };

const { TIDINGS_URL } = process.env;
const project = new Project("react-native");
project.write("App.tsx", printed("sdk/react/README.md")("App.tsx"));
project.write("index.tsx", `
export * as client from "@tidings/client";
export { becomes } from "react-native";
import { create } from "react-test-renderer";
import App from "./App";
export const show = (app: object) => create(<App {...app} />);
`);
await addPeople();

const runtime = new Runtime();
let bundle;
let screen;

async function until(what, holds) {
  for (const end = Date.now() + 60_000; !(await holds()); await new Promise((resolve) => setTimeout(resolve, 50))) {
    assert(Date.now() < end, `not in time: ${what}; the screen has ${JSON.stringify(screen?.toJSON())}; reported: ${runtime.reported}`);
  }
}
const all = (type) => (screen.toJSON() ? screen.root.findAllByType(type) : []);
const texts = () => all("Text").map(({ props }) => [props.children].flat().join(""));
const sees = (text) => until(text, () => texts().includes(text));

const failed = await run(`React ${react.version} without a page`, [
  ["the README's app is bundled as for React Native", async () => {
    const { outputFiles, warnings } = await build({
      absWorkingDir: project.folder, entryPoints: ["index.tsx"], bundle: true, write: false, format: "iife", globalName: "app", target: "es2022", jsx: "automatic",
      platform: "neutral", conditions: ["react-native"], mainFields: ["react-native", "module", "main"], define: { "process.env.NODE_ENV": '"production"' },
      alias: { "react-native": fileURLToPath(new URL("react-native.mjs", import.meta.url)) },
    });
    assert(warnings.length === 0, warnings);
    bundle = outputFiles[0].text;
  }],
  ["it starts without a document, and messages come and go", async () => {
    runtime.run(`${bundle}\nglobalThis.app = app;`);
    screen = runtime.context.app.show({ url: TIDINGS_URL, user: "alice", peer: "bob", deviceId: "phone", token: async () => token("alice") });
    await until("a chat", () => all("TextInput").length === 1);
    await say("bob", "alice", "grüße 😀");
    await sees("bob: grüße 😀");
    screen.root.findByType("TextInput").props.onChangeText("from the phone");
    await until("the text in the field", () => screen.root.findByType("TextInput").props.value === "from the phone");
    screen.root.findByType("Button").props.onPress();
    await sees("alice: from the phone");
    // The screen has it before the server does.
    const isStored = async () => (await api("GET", `/v1/conversations/alice~bob/messages`)).entries.some(({ body }) => body.text === "from the phone");
    await until("the message in the history", isStored);
  }],
  ["what grows, what is asked over HTTP and what is stored need no page either", async () => {
    const { client } = runtime.context.app;
    const tidings = await client.connect({ url: TIDINGS_URL, token: async () => token("bob"), deviceKind: "android", storage: client.memoryStorage() });
    const growing = await tidings.direct("alice").stream({ text: "one" });
    growing.append(" twö");
    growing.append(" 😀");
    await growing.end();
    await sees("bob: one twö 😀");
    const { members } = await tidings.direct("alice").members();
    assert(members.length === 2, members);
    const failure = await tidings.offlinePush.subscribe({ publicKey: Buffer.alloc(65, 4).toString("base64url") }).catch((error) => error);
    assert(failure.code === "notifications_unsupported", String(failure));
    await tidings.offlinePush.forget();
    await tidings.close();
  }],
  ["a connection that breaks comes back over a WebSocket: an event stream would never begin", async () => {
    const { client } = runtime.context.app;
    runtime.unreachable = 2;
    const tidings = await client.connect({ url: TIDINGS_URL.replace("http", "ws"), token: async () => token("bob"), deviceId: "other" });
    assert(tidings.status.get().state === "online" && runtime.unreachable < 0, tidings.status.get());
    assert(!runtime.asked.some((url) => url.includes("/v1/stream")), runtime.asked);
    await tidings.close();
  }],
  ["the app says whether somebody looks", async () => {
    const phone = async () => (await api("GET", "/v1/presence?users=alice")).users[0].devices.find(({ device_id }) => device_id === "phone");
    assert((await phone()).device_kind === "ios", await phone());
    for (const [state, isSeen] of [["background", false], ["active", true], ["inactive", false]]) {
      runtime.context.app.becomes(state);
      await until(state, async () => ((await phone()).background !== true) === isSeen);
    }
  }],
  ["nothing was reported, and the app ends its session when it goes", async () => {
    screen.unmount();
    await until("offline", async () => (await api("GET", "/v1/presence?users=alice")).users[0].devices.length === 0);
    assert(runtime.reported.length === 0, runtime.reported.map(String));
  }],
]);
project.end();
process.exit(failed);
