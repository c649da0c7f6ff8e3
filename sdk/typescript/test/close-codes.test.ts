// The table of docs/websocket.md and the codes of docs/asyncapi.json against the client's table.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { CLOSE_CODES, endingOf, endingOfError } from "../src/session/close-codes.js";
import { repositoryFile } from "./support/repository.js";

test("every close code of the API's description is known under its name", () => {
  const description = JSON.parse(readFileSync(repositoryFile("docs/asyncapi.json"), "utf8"));
  const codes: { readonly [number: string]: string } = description.channels.connect["x-close-codes"];
  assert.ok(Object.keys(codes).length > 20);
  for (const [number, code] of Object.entries(codes)) assert.equal(CLOSE_CODES.get(Number(number))?.code, code, number);
});

test("the advice is that of the table in docs/websocket.md", () => {
  const text = readFileSync(repositoryFile("docs/websocket.md"), "utf8");
  const rows = text.slice(text.indexOf("## How sessions end")).matchAll(/^\| ([\d, ]+) \| (.+?) \| (.+?) \|$/gm);
  let checked = 0;
  for (const [, numbers, , advice] of rows) {
    for (const number of (numbers ?? "").split(",").map(Number)) {
      if (number === 1000 || number === 1006 || number === 4999) continue;
      const said = advice ?? "";
      const expected = /drop the cursor/.test(said) ? "fresh" : /new token|another token/.test(said) ? "token" : /^reconnect|^connect/.test(said) ? "retry" : "stop";
      assert.equal(endingOf(number).advice, expected, `${number}: ${said}`);
      checked += 1;
    }
  }
  assert.ok(checked >= CLOSE_CODES.size, `${checked} rows were read`);
});

test("numbers outside the table: a broken connection below 4000, as told from there on", () => {
  for (const [number, advice] of [[1000, "retry"], [1006, "retry"], [1011, "retry"], [3999, "retry"], [4000 + 99, "told"], [4999, "told"]] as const) {
    assert.equal(endingOf(number).advice, advice, String(number));
  }
  assert.equal(endingOfError("of_a_newer_server", true).advice, "retry");
  assert.equal(endingOfError("of_a_newer_server", false).advice, "stop");
  assert.equal(endingOfError("kicked", true).advice, "stop");
});
