// The same client against the real server, in a network that lets no WebSocket through.
process.env["TIDINGS_TRANSPORT"] = "event-stream";
await import("./chat.test.js");
