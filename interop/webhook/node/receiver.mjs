// A receiver of webhooks on node:http. What it prints, a line each, is what ../drive.py reads.
import { createServer } from "node:http";
import { verify } from "../../../docs/examples/server/node/verify-webhook.mjs";

const secret = process.env.WEBHOOK_SECRET;
const plan = []; // statuses that the next good calls are answered with
const tell = (what) => console.log(JSON.stringify(what));

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts);
    const answer = (status) => {
      response.writeHead(status, status >= 300 && status < 400 ? { Location: "/elsewhere" } : {});
      response.end();
    };
    if (request.url === "/plan") {
      plan.splice(0, plan.length, ...JSON.parse(body));
      return answer(204);
    }
    if (!verify(secret, request.headers, body)) {
      tell({ status: 401, timestamp: request.headers["tidings-timestamp"] });
      return answer(401);
    }
    const status = plan.shift() ?? 200;
    tell({
      status,
      timestamp: request.headers["tidings-timestamp"],
      signature: request.headers["tidings-signature"],
      type: request.headers["content-type"],
      body: body.toString("hex"),
      events: JSON.parse(body).events,
    });
    answer(status);
  });
});
server.listen(0, "127.0.0.1", () => tell({ client: `Node ${process.version}, node:crypto`, port: server.address().port }));
