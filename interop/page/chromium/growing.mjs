// Messages that grow: of the demo assistant, which the window itself speaks for, and of an app's server.
import WebSocket from "ws";
import { assert } from "../../harness/session.mjs";
import { Window, api } from "../../harness/page.mjs";

const GROWING = "article:has(.is-growing)";

export const growing = (people) => [
  ["the assistant's answer grows in both windows of a user, and is one message at the end", async () => {
    const { alice } = people;
    const other = await Window.open("alice", { context: alice.context, network: alice.network, hash: "#alice~assistant" });
    await alice.choose("Assistant");
    await alice.write("how do you <b>grow</b>?");
    for (const window of [alice, other]) await window.sees(GROWING);
    const lengths = await other.page.evaluate(async () => {
      const found = new Set();
      while (document.querySelector(".is-growing")) {
        found.add(document.querySelector(".is-growing").textContent.length);
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
      return [...found];
    });
    assert(lengths.length > 5 && lengths.every((length, index) => index === 0 || length > lengths[index - 1]), lengths);
    await alice.misses(GROWING);
    const said = await Promise.all([alice, other].map(({ page }) => page.locator("article .body").last().textContent()));
    assert(said[0] === said[1] && said[0].startsWith("You wrote “how do you <b>grow</b>?”.") && said[0].endsWith("and its end."), said);
    await alice.page.reload();
    await alice.waitForTexts(["how do you <b>grow</b>?", said[0]]);
    await other.page.close();
  }],
  ["an answer that is stopped stays as it is", async () => {
    const { alice } = people;
    await alice.write("and now stop");
    await alice.sees(`${GROWING}:has-text("You wrote")`);
    await alice.page.click(".stop");
    await alice.misses(GROWING);
    const said = await alice.page.locator("article .body").last().textContent();
    assert(said.startsWith("You wrote") && !said.endsWith("and its end."), said);
    await alice.page.goto(alice.page.url().replace(/#.*/u, "#demo"));
    await alice.sees("textarea");
  }],
  ["a growing message goes on in the middle for who was away, and for who has reloaded", async () => {
    const { alice, bob } = people;
    await bob.page.goto(bob.page.url().replace(/#.*/u, "#demo"));
    const { seq } = await api("POST", "/v1/streams", { conversation: "demo", from: "carol", body: { text: "" } });
    let offset = 0;
    const grow = async (text) => ({ offset } = await api("POST", `/v1/streams/demo/${seq}`, { offset, text }));
    const shows = (window, text) => window.sees(`article[data-seq="${seq}"] .is-growing:text-is("${text}")`);
    await grow("one");
    for (const window of [alice, bob]) await shows(window, "one");
    await bob.leave();
    await grow(" two");
    await shows(alice, "one two");
    await bob.comeBack();
    await shows(bob, "one two");
    await grow(" three");
    await bob.page.reload();
    for (const window of [alice, bob]) await shows(window, "one two three");
    await grow(" four");
    for (const window of [alice, bob]) await shows(window, "one two three four");
    await bob.leave();
    await api("POST", `/v1/streams/demo/${seq}/end`, { body: { text: "one to five" } });
    await bob.comeBack();
    for (const window of [alice, bob]) {
      await window.sees(`article[data-seq="${seq}"]:has(.body:not(.is-growing):text-is("one to five"))`);
      await window.misses(`article[data-seq="${seq}"] .message-edited`);
    }
  }],
  ["a message whose writer is gone says that it broke off", async () => {
    const { alice, bob } = people;
    const { users } = await (await fetch(`${process.env.TIDINGS_URL}/page/users`)).json();
    const { token } = users.find(({ id }) => id === "carol");
    const writer = new WebSocket(process.env.TIDINGS_WS);
    const tell = (frame) => writer.send(JSON.stringify(frame));
    writer.on("open", () => tell({ t: "bind", token, device_id: "writer" }));
    writer.on("message", (data) => {
      const { t, results } = JSON.parse(data);
      if (t === "bound") tell({ t: "stream_begin", ref: 1, conversation: "demo", body: { text: "" } });
      if (t === "sent") tell({ t: "stream_append", conversation: "demo", seq: results[0].seq, offset: 0, text: "half a sen" });
    });
    await bob.sees(`${GROWING}:has-text('half a sen')`);
    writer.terminate();
    for (const window of [alice, bob]) await window.sees("article:has-text('half a sen'):has-text('It broke off here.')");
    await bob.misses(GROWING);
  }],
];
