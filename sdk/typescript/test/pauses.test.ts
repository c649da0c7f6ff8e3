// A link that takes a lost connection for a live one is asked again with pauses, and not without an end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Asker } from "../src/chat/asker.js";
import type { Core } from "../src/chat/core.js";
import { Emitter } from "../src/chat/emitter.js";
import { Outbox } from "../src/chat/outbox.js";
import { CLIENT_CODES, TidingsError } from "../src/errors.js";
import { Cell } from "../src/observable.js";
import type { AnswerTo, Link } from "../src/session/link.js";
import type { ConnectionStatus } from "../src/tidings.js";
import type { RequestFrame } from "../src/wire/client-frames.js";
import { VirtualClock } from "./support/virtual-clock.js";

// More than any pause allows within the time of a test, so that a client that never pauses ends the test, too.
const REQUESTS_MAX = 10_000;

class MistakenLink implements Link {
  readonly status = new Cell<ConnectionStatus>({ state: "connecting" });
  readonly isUp = true;
  requests = 0;

  request<Frame extends RequestFrame>(_: Frame): Promise<AnswerTo<Frame>> {
    this.requests += 1;
    const code = this.requests < REQUESTS_MAX ? CLIENT_CODES.connectionLost : "forbidden";
    return Promise.reject(new TidingsError(code, "there is no connection", { retry: code === CLIENT_CODES.connectionLost }));
  }

  tell(): void {}
  listen(): () => void {
    return () => undefined;
  }
  start(): void {}
  close(): Promise<void> {
    return Promise.resolve();
  }
}

test("a question is asked again twice a second at most", async () => {
  const link = new MistakenLink();
  const clock = new VirtualClock();
  void new Asker(link, clock).ask({ t: "ping" }).catch(() => undefined);
  await clock.pass(10_000);
  assert.ok(link.requests > 1 && link.requests <= 21, `${link.requests} requests`);
});

test("a message is sent again after growing pauses, and stays to be sent", async () => {
  const link = new MistakenLink();
  const clock = new VirtualClock();
  const core: Core = { me: "ada", link, clock, asker: new Asker(link, clock), emitter: new Emitter() };
  const outbox = new Outbox(core, { outboxChanged: () => undefined });
  void outbox.send("g", { body: { text: "hello" }, client_msg_id: "1" }).catch(() => undefined);
  await clock.pass(60_000);
  assert.ok(link.requests > 1 && link.requests <= 10, `${link.requests} requests`);
  assert.equal(outbox.all[0]?.state, "queued");
});
