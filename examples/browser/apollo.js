// Follow products with Apollo Client, typed by the catalog's schema.

import { ApolloClient, gql, InMemoryCache } from "@apollo/client";
import { GraphQLWsLink } from "@apollo/client/link/subscriptions";
import { createClient } from "graphql-ws";
import { catalog, server, show } from "./page.js";

const url = `ws://${server}/v1/catalogs/${catalog}/graphql`;
const link = new GraphQLWsLink(createClient({ url, retryAttempts: 0 }));
const client = new ApolloClient({ link, cache: new InMemoryCache() });
const query = gql`subscription Products($sinceVersion: Long, $after: String) {
  onProductChange(sinceVersion: $sinceVersion, after: $after) {
    version index cursor operation primaryKey
    after { id name price }
    omittedBytes
  }
}`;
let start = { sinceVersion: 0 };

function follow() {
  // Without the cache: a change is no state of a product that could be asked for again. With all errors: by
  // default Apollo drops a whole change for one value that cannot be shown.
  const options = { query, variables: start, fetchPolicy: "no-cache", errorPolicy: "all" };
  client.subscribe(options).subscribe(({ data, error }) => {
    if (data) {
      show(data.onProductChange);
      start = { after: data.onProductChange.cursor }; // whoever comes back goes on exactly here
    } else if (error.errors?.[0].extensions.retriable ?? true) {
      setTimeout(follow, 1000); // a lost socket, or an error that says that it may be tried again
    } else {
      console.error(error);
    }
  });
}
follow();
