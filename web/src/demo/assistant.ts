// The assistant of development mode. There is no server of an app, so the window that asked speaks for the assistant, with the calls
// that an app's own server would make: begin a message, append to it, end it.
import { Cell } from "../state/cell.js";
import { answerTo } from "./answer.js";

const CHUNK_EVERY_MS = 45;
const TRY_AGAIN_MS = 700;

interface Begun {
  readonly conversation: string;
  readonly seq: number;
}

export class Assistant {
  readonly id: string;
  readonly name: string;
  /** What is being written from this window: `conversation/seq` of the messages. */
  readonly writing = new Cell<ReadonlySet<string>>(new Set());
  readonly #token: () => Promise<string | null>;

  constructor(id: string, name: string, token: () => Promise<string | null>) {
    this.id = id;
    this.name = name;
    this.#token = token;
  }

  /** Answers a message with one that grows. Rejects when the server refuses it. */
  async answer(conversation: string, question: string, seq: number): Promise<void> {
    const token = await this.#token();
    if (token === null) return;
    const call = (path: string, body: object): Promise<Response> => post(path, token, body);
    const begun = (await expect(call("/v1/streams", { conversation, client_msg_id: `answer-${seq}`, body: { text: "" } }))) as Begun;
    const path = `/v1/streams/${encodeURIComponent(begun.conversation)}/${begun.seq}`;
    const name = `${begun.conversation}/${begun.seq}`;
    this.#set(name, true);
    try {
      let offset = 0;
      for (const chunk of answerTo(question)) {
        if (!this.writing.get().has(name)) break; // stopped
        const answer = await call(path, { offset, text: chunk });
        if (!answer.ok) return; // it was taken back, or has ended
        ({ offset } = (await answer.json()) as { offset: number });
        await pause(CHUNK_EVERY_MS);
      }
      await call(`${path}/end`, {});
    } finally {
      this.#set(name, false);
    }
  }

  /** Ends an answer as it is. */
  stop(conversation: string, seq: number): void {
    this.#set(`${conversation}/${seq}`, false);
  }

  #set(name: string, isWriting: boolean): void {
    const names = new Set(this.writing.get());
    if (isWriting) names.add(name);
    else names.delete(name);
    this.writing.set(names);
  }
}

/** A call that the network loses is made again: a chunk that came twice is known by its offset. */
async function post(path: string, token: string, body: object): Promise<Response> {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  for (;;) {
    try {
      const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
      if (answer.status !== 429 && answer.status !== 503) return answer;
    } catch {
      // No network: it may be back.
    }
    await pause(TRY_AGAIN_MS);
  }
}

async function expect(called: Promise<Response>): Promise<unknown> {
  const answer = await called;
  const body = (await answer.json()) as { readonly detail?: string };
  if (!answer.ok) throw new Error(body.detail ?? `status ${answer.status}`);
  return body;
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
