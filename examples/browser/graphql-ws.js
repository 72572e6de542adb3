// Follow products with graphql-ws, typed by the catalog's schema.

import { createClient } from "graphql-ws";
import { catalog, server, show } from "./page.js";

const client = createClient({
  url: `ws://${server}/v1/catalogs/${catalog}/graphql`,
  retryAttempts: 0, // it would begin with the first variables again: we subscribe anew instead
});
const query = `subscription Products($sinceVersion: Long, $after: String) {
  onProductChange(sinceVersion: $sinceVersion, after: $after) {
    version index cursor operation primaryKey
    after { id name price }
    omittedBytes
  }
}`;
let start = { sinceVersion: 0 };

function follow() {
  client.subscribe({ query, variables: start }, {
    next({ data }) {
      show(data.onProductChange);
      start = { after: data.onProductChange.cursor }; // whoever comes back goes on exactly here
    },
    error(reason) {
      // A lost socket, or errors of the operation: those that say so may be tried again.
      if (reason[0]?.extensions?.retriable ?? true) setTimeout(follow, 1000);
      else console.error(reason);
    },
    complete() {},
  });
}
follow();
