// GraphiQL for the path that this page was asked for: queries by HTTP, subscriptions by WebSocket, same address.

const http = new URL(location.href);
http.search = "";
http.hash = "";
const socket = new URL(http);
socket.protocol = http.protocol === "https:" ? "wss:" : "ws:";

const system = http.pathname.endsWith("/system/graphql");
const example = system
  ? `# Catalogs created, dropped and replaced, from the first on. Press play; the list goes on by itself.
subscription Catalogs {
  onSystemChange(sinceVersion: 0) {
    version
    cursor
    operation
    primaryKey
    after
  }
}

query Now {
  catalogs {
    name
    publishedVersion
  }
}
`
  : `# Everything in this catalog, from the oldest change that is retained. Press play; the list goes on by itself.
# To resume, hand a cursor in: onCatalogChange(after: "1.…"). The typed fields stand beside it: Ctrl-Space.
subscription Live {
  onCatalogChange(sinceVersion: 0, signals: true) {
    version
    index
    cursor
    operation
    entityType
    primaryKey
    changed
    after
  }
}

query Newest {
  changes(first: 10, reverse: true) {
    closedUntil
    edges {
      node {
        version
        entityType
        primaryKey
        after
      }
    }
  }
}

query Columns {
  schema {
    entityTypes {
      name
      type
      columns {
        name
        field
        sqlType
      }
    }
  }
}
`;

ReactDOM.createRoot(document.getElementById("graphiql")).render(
  React.createElement(GraphiQL, {
    fetcher: GraphiQL.createFetcher({ url: http.toString(), subscriptionUrl: socket.toString() }),
    defaultQuery: example,
    defaultEditorToolsVisibility: false,
  }),
);
