// What the demo assistant says: about what can be seen while it says it.
const QUOTED_CHARACTERS_MAX = 80;

const ABOUT = [
  "I am no language model, only a stand-in for one. But my answer comes to you as a real one's would:",
  "the message was begun empty, each word is a chunk that reaches every window without waiting for a disk, and the end makes it a message like any other.",
  "\n\nTry what happens meanwhile. Go offline and come back: the rest is there, and nothing twice. Reload the page: it goes on in the middle.",
  "Press “Stop”, and what I have said until then stays. Close the window that asked, and after a minute the server marks the answer as broken off.",
  "\n\nYour own server does this with three calls: POST /v1/streams, a chunk at a time to the message, and its end.",
];

/** The answer in chunks, a word each. */
export function answerTo(question: string): readonly string[] {
  const line = question.replace(/\s+/gu, " ").trim();
  const quoted = line.length > QUOTED_CHARACTERS_MAX ? `${[...line].slice(0, QUOTED_CHARACTERS_MAX).join("")}…` : line;
  return `You wrote “${quoted}”. ${ABOUT.join(" ")}`.split(/(?<=\s)(?=\S)/u);
}
