// Follow products with graphql-sse, as server-sent events, typed by the catalog's schema.
//
//     node graphql-sse.js shop --server 127.0.0.1:7412

import { parseArgs } from "node:util";
import { setTimeout as wait } from "node:timers/promises";
import { createClient } from "graphql-sse";

const options = { server: { type: "string", default: "127.0.0.1:7412" } };
const { values: { server }, positionals: [catalog = "shop"] } = parseArgs({ allowPositionals: true, options });
const client = createClient({ url: `http://${server}/v1/catalogs/${catalog}/graphql`, retryAttempts: 0 });
const query = `subscription Products($sinceVersion: Long, $after: String) {
  onProductChange(sinceVersion: $sinceVersion, after: $after) {
    version index cursor operation primaryKey
    after { id name price }
    omittedBytes
  }
}`;
let start = { sinceVersion: 0 };

for (;;) {
  try {
    for await (const { data, errors } of client.iterate({ query, variables: start })) {
      if (!data) throw errors; // it has ended
      errors?.forEach(({ message }) => console.error(message)); // a value that is null in the data
      const { version, index, cursor, operation, primaryKey, after, omittedBytes } = data.onProductChange;
      const image = omittedBytes ? `(${omittedBytes} bytes left out)` : JSON.stringify(after);
      console.log(`${version}:${index} ${operation} ${primaryKey} ${image}`);
      start = { after: cursor }; // whoever comes back goes on exactly here
    }
  } catch (reason) {
    // A lost connection, or errors of the operation: those that say so may be tried again.
    if (reason[0] && !reason[0].extensions.retriable) {
      console.error(reason[0].message);
      process.exit(1);
    }
    console.error(reason.message || reason[0]?.message || reason);
    await wait(1000);
  }
}
