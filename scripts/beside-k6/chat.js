// A group chat over WebSocket for k6: every member is a virtual user that binds and receives, and some of them send at a rate.
// The file PLAN says who they are. Written as k6's documentation has it: counters and a trend, and thresholds on their totals.
import { WebSocket } from "k6/websockets";
import { Counter, Trend } from "k6/metrics";
import exec from "k6/execution";

const plan = JSON.parse(open(__ENV.PLAN));
const sent = new Counter("messages_sent");
const received = new Counter("messages_received");
const refused = new Counter("frames_refused");
const latency = new Trend("delivery_ms");

export const options = {
  scenarios: { chat: { executor: "per-vu-iterations", vus: plan.tokens.length, iterations: 1, maxDuration: "10m" } },
  thresholds: {
    messages_sent: [`count==${plan.messages}`],
    messages_received: [`count==${plan.messages * plan.tokens.length}`],
    frames_refused: ["count==0"],
    delivery_ms: ["p(99)<60000"],
  },
  summaryTrendStats: ["med", "p(90)", "p(99)", "max"],
};

export default function () {
  const me = exec.vu.idInTest - 1;
  const socket = new WebSocket(plan.url);
  socket.onopen = () => socket.send(JSON.stringify({ t: "bind", token: plan.tokens[me], device_id: `k6-${me}` }));
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.t === "error") {
      console.error(data);
      refused.add(1);
    }
    if (frame.t === "bound" && me < plan.senders) setTimeout(() => send(socket, me), Math.max(0, plan.begin - Date.now()));
    if (frame.t !== "messages") return;
    const now = Date.now();
    for (const { kind, body } of frame.entries) {
      if (kind !== "message") continue;
      received.add(1);
      latency.add(now - body.at);
    }
  };
  setTimeout(() => socket.close(), plan.end - Date.now());
}

function send(socket, me) {
  const each = plan.messages / plan.senders;
  let done = 0;
  const timer = setInterval(() => {
    const body = { at: Date.now(), text: plan.text };
    socket.send(JSON.stringify({ t: "send", conversation: plan.conversation, client_msg_id: `${me}-${done}`, body }));
    sent.add(1);
    done += 1;
    if (done === each) clearInterval(timer);
  }, (1000 * plan.senders) / plan.rate);
}
