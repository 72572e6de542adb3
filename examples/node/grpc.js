// Follow products over gRPC, without generated code. While a message is handled the call is paused: the server
// sends no more than fits the transport's window, however much there is, and keeps nothing for us.
//
//     node grpc.js shop --server 127.0.0.1:7411 [--by-hand]
//
// By hand each message waits for Enter; at the end of input the rest comes by itself.

import { parseArgs } from "node:util";
import { createInterface } from "node:readline";
import { credentials, loadPackageDefinition, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const options = {
  server: { type: "string", default: "127.0.0.1:7411" },
  "by-hand": { type: "boolean", default: false },
};
const { values, positionals: [catalog = "shop"] } = parseArgs({ allowPositionals: true, options });
const enter = values["by-hand"] ? createInterface({ input: process.stdin })[Symbol.asyncIterator]() : null;
const includeDirs = [new URL("../../proto", import.meta.url).pathname];
const proto = loadSync("tailrace/v1/change_capture.proto", { includeDirs, enums: String, longs: Number, defaults: true });
const { ChangeCapture } = loadPackageDefinition(proto).tailrace.v1;
const client = new ChangeCapture(values.server, credentials.createInsecure());
const wish = { catalog, criteria: [{ area: "AREA_DATA", entityType: ["product"] }], body: ["BODY_AFTER"] };
const { INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED } = status;
const refused = [INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED];
let start = { sinceVersion: 0 };

function follow() {
  const call = client.subscribe({ ...wish, ...start });
  let log;
  call.on("data", async ({ acknowledgement, captures = [] }) => {
    call.pause();
    log ??= acknowledgement.catalogUuid.replaceAll("-", ""); // the first message has it
    for (const { version, index, operation, primaryKey, after = null, omittedBytes } of captures) {
      // A row above maxMessageBytes, 4 MiB unless we ask for another bound, comes without its body.
      const image = omittedBytes ? `(${omittedBytes} bytes left out)` : after;
      console.log(`${version}:${index} ${operation.slice(10)} ${primaryKey} ${image}`);
    }
    const last = captures.at(-1);
    if (last) start = { after: `1.${log}.${last.version}.${last.index}.0` }; // of rows; columns have an ordinal
    if (captures.length && enter) await enter.next();
    call.resume();
  });
  call.on("error", (error) => {
    console.error(error.details);
    if (refused.includes(error.code)) process.exit(1);
    setTimeout(follow, 1000); // any other status may be a cut: goes on exactly behind the last change
  });
}
follow();
