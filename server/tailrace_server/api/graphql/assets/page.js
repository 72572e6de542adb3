// GraphiQL for the path of this page: queries over HTTP and subscriptions over WebSocket at the same address.

const http = new URL(location.href);
http.search = "";
http.hash = "";
const socket = new URL(http);
socket.protocol = http.protocol === "https:" ? "wss:" : "ws:";

const system = http.pathname.endsWith("/system/graphql");
const example = system
  ? `# Catalogs created, dropped and replaced,
# from the first on. Press play and choose.
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
  : `# Everything in this catalog, from the oldest
# change on. Press play and choose; Ctrl-Space
# offers what else there is, the typed fields too.
# afterText is exact. As an object, after, its
# numbers above 2^53 would be rounded by the browser.
# To resume: onCatalogChange(after: "1.…").
subscription Live {
  onCatalogChange(sinceVersion: 0) {
    version
    index
    cursor
    operation
    entityType
    primaryKey
    changed
    afterText
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
        afterText
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

// GraphiQL displays one result at a time. For a subscription, that result is a growing list of the newest changes.
const SHOWN = 50;
const PAINT_MS = 50;

function asList(results) {
  const subscribe = (observer) => {
    const newestFirst = [];
    let received = 0;
    let painting;
    let stopped = false;
    const paint = () => {
      painting = undefined;
      observer.next({ received, newestFirst });
    };
    const stop = () => {
      clearTimeout(painting);
      stopped = true;
    };
    const read = async () => {
      for await (const result of results) {
        received += 1;
        newestFirst.unshift(result);
        newestFirst.splice(SHOWN);
        if (!stopped) painting ??= setTimeout(paint, PAINT_MS);
      }
    };
    const ended = (tell) => {
      if (stopped) return;
      stop();
      paint();
      tell();
    };
    read().then(
      () => ended(() => observer.complete()),
      (error) => ended(() => observer.error(error)),
    );
    const unsubscribe = () => {
      stop();
      results.return();
    };
    return { unsubscribe };
  };
  return { subscribe };
}

// The token is read at each connect: the reader types it only after the server has refused the first request.
const ask = GraphiQL.createFetcher({
  url: http.toString(),
  subscriptionUrl: socket.toString(),
  fetch: tokens.ask,
  wsConnectionParams: {
    get token() {
      return tokens.current;
    },
  },
});

async function fetcher(...asked) {
  const answer = await ask(...asked);
  return answer?.[Symbol.asyncIterator] ? asList(answer) : answer;
}

// The reader's documents are stored for each catalog: a document of one catalog is rarely valid in another.
const named = (name) => `${http.pathname} ${name}`;
const storage = {
  getItem: (name) => localStorage.getItem(named(name)),
  setItem: (name, value) => localStorage.setItem(named(name), value),
  removeItem: (name) => localStorage.removeItem(named(name)),
  clear: () => storage.names().forEach((name) => localStorage.removeItem(name)),
  names: () => Object.keys(localStorage).filter((name) => name.startsWith(named(""))),
  get length() {
    return storage.names().length;
  },
};

// GraphiQL's editors have no labels for screen readers. They are created with its panes, so watch for them.
const EDITORS = {
  ".graphiql-query-editor textarea": "query",
  ".graphiql-editor-tool .graphiql-editor:nth-child(1) textarea": "variables",
  ".graphiql-editor-tool .graphiql-editor:nth-child(2) textarea": "headers",
  ".result-window textarea": "result",
};
const place = document.getElementById("graphiql");
new MutationObserver(() => {
  for (const [selector, name] of Object.entries(EDITORS)) {
    for (const each of place.querySelectorAll(selector)) each.setAttribute("aria-label", name);
  }
}).observe(place, { childList: true, subtree: true });

const title = system ? "system" : decodeURIComponent(http.pathname.split("/").at(-2));
document.title = `${title} · GraphiQL · tailrace`;
ReactDOM.createRoot(place).render(
  React.createElement(
    GraphiQL,
    { fetcher, storage, defaultQuery: example, defaultEditorToolsVisibility: false },
    React.createElement(GraphiQL.Logo, null, title),
  ),
);
