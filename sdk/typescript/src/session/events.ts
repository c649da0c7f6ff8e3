// Server-sent events (the HTML standard, 9.2.6), from text that comes in chunks of any size.

export interface ServerEvent {
  /** `message` where the stream names none. */
  readonly name: string;
  readonly data: string;
}

export class EventParser {
  #rest = "";
  #name = "";
  #data: string[] = [];

  /** The events that are complete with this chunk. */
  take(chunk: string): readonly ServerEvent[] {
    const text = this.#rest + chunk;
    // A carriage return at the end may be the first half of a line's end.
    const end = text.endsWith("\r") ? text.length - 1 : text.length;
    const lines = text.slice(0, end).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + text.slice(end);
    return lines.flatMap((line) => this.#line(line));
  }

  #line(line: string): readonly ServerEvent[] {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#name = value;
    if (field === "data") this.#data.push(value);
    return []; // an empty field's name is a comment; `id` and `retry` are for clients that connect again by themselves
  }

  #dispatch(): readonly ServerEvent[] {
    const event = { name: this.#name === "" ? "message" : this.#name, data: this.#data.join("\n") };
    const hasData = this.#data.length > 0;
    this.#name = "";
    this.#data = [];
    return hasData ? [event] : [];
  }
}
