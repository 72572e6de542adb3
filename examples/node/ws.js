// Follow products over REST's WebSocket, with ws; at most 100 changes are on their way at a time.
//
//     node ws.js shop --server 127.0.0.1:7412

import { parseArgs } from "node:util";
import { WebSocket } from "ws";

const options = { server: { type: "string", default: "127.0.0.1:7412" } };
const { values: { server }, positionals: [catalog = "shop"] } = parseArgs({ allowPositionals: true, options });
const wish = { body: ["after"], criteria: [{ area: "DATA", entityType: ["product"] }], request: 100 };
let start = { sinceVersion: 0 };

function follow() {
  const socket = new WebSocket(`ws://${server}/v1/catalogs/${catalog}/changes/live`, "tailrace.v1");
  const say = (message) => socket.send(JSON.stringify(message));
  socket.on("open", () => say({ type: "connection_init" }));
  socket.on("error", (error) => console.error(error.message));
  socket.on("close", () => setTimeout(follow, 1000));
  socket.on("message", (data) => {
    const { type, payload } = JSON.parse(data);
    if (type === "connection_ack") say({ type: "subscribe", id: "1", payload: { ...wish, ...start } });
    if (type === "ping") say({ type: "pong" });
    if (type === "next") {
      for (const { version, index, operation, primaryKey, after, omittedBytes } of payload.captures) {
        // A row above maxMessageBytes, 4 MiB unless we ask for another bound, comes without its body.
        const image = omittedBytes ? `(${omittedBytes} bytes left out)` : JSON.stringify(after);
        console.log(`${version}:${index} ${operation} ${primaryKey} ${image}`);
      }
      start = { after: payload.cursor }; // whoever comes back goes on exactly here
      say({ type: "request", id: "1", payload: { n: payload.captures.length } });
    }
    if (type === "error" && payload.retriable) socket.close();
    else if (type === "error") {
      console.error(payload.detail);
      process.exit(1);
    }
  });
}
follow();
