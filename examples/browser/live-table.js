// A live copy of a table: a Map of keys to rows, always as of one whole version. For a browser, and for Node.
//
//     import { LiveTable } from "./live-table.js";
//
//     const products = new LiveTable("http://127.0.0.1:7412/v1/catalogs/shop", "product");
//     products.onversion = () => render(products.version, products);
//     products.onlost = (error) => console.warn(error.message);    // tried again by itself
//     products.follow().catch((error) => console.error(error));    // what no retry helps
//
// Rows are the JSON text of their source: JSON.parse would round numbers of more than 53 bits and decimals, so it is
// yours to call where you know that it does not.

const GONE = new Set(["POSITION_COMPACTED", "CATALOG_REPLACED", "HISTORY_REPLACED", "CURSOR_AHEAD"]);
const SILENCE_MS = 30_000; // three heartbeats

export class LiveTable extends Map {
  version = 0;
  onversion = () => {};
  onlost = () => {};
  #url;
  #type;
  #cursor = null; // behind the last whole version; null: all rows are to be read
  #ended = new AbortController();

  constructor(url, entityType) {
    super();
    this.#url = url;
    this.#type = entityType;
  }

  close() {
    this.#ended.abort();
  }

  // Follow until it is closed; throws what no retry helps.
  async follow() {
    while (!this.#ended.signal.aborted) {
      try {
        if (this.#cursor === null) await this.#load();
        await this.#changes();
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        if (GONE.has(error.code)) this.#cursor = null;
        else if (error.code && error.retriable === false) throw error;
        this.onlost(error);
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  // All rows, which take the place of the old ones at once.
  async #load() {
    const path = `state/${encodeURIComponent(this.#type)}?bodies=text`;
    const answer = await this.#ask(path, "application/x-ndjson");
    const rows = new Map();
    let whole = false;
    for await (const line of pieces(answer.body, "\n")) {
      const { end, error, primaryKey, after } = JSON.parse(line);
      if (error) throw problem(error);
      if (end) whole = true;
      else rows.set(primaryKey, after);
    }
    if (!whole) throw new Error("the table was cut");
    this.clear();
    rows.forEach((row, key) => this.set(key, row));
    this.#cursor = answer.headers.get("tailrace-resume-cursor");
    this.#show(Number(answer.headers.get("tailrace-version")));
  }

  // Changes are kept until their version is whole: its lead counts them.
  async #changes() {
    const criteria = [{ area: "DATA", entityType: [this.#type] }, { area: "SCHEMA", entityType: [this.#type] },
      { area: "INFRASTRUCTURE" }];
    const wish = new URLSearchParams({ after: this.#cursor, body: "after", bodies: "text" });
    wish.set("criteria", JSON.stringify(criteria));
    const answer = await this.#ask(`changes/live?${wish}`, "text/event-stream");
    let waiting = [];
    let left = 0;
    for await (const text of pieces(answer.body, "\n\n")) {
      const fields = Object.fromEntries(text.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (fields.event === "error") throw problem(JSON.parse(fields.data));
      if (fields.event || !fields.data) continue; // subscribed, heartbeat
      const capture = JSON.parse(fields.data);
      if (capture.operation === "TRANSACTION") left = counted(JSON.parse(capture.after), this.#type);
      else {
        if (capture.omittedBytes) throw problem({ detail: `${capture.primaryKey} is too large`, code: "TOO_LARGE" });
        waiting.push(capture);
        left -= 1;
      }
      if (left > 0) continue;
      waiting.forEach((each) => this.#apply(each));
      waiting = [];
      this.#cursor = capture.cursor;
      this.#show(capture.version);
    }
    throw new Error("the stream was cut");
  }

  #apply({ area, operation, primaryKey, after }) {
    if (area !== "DATA") return;
    if (operation === "UPSERT") this.set(primaryKey, after);
    else if (primaryKey !== null) this.delete(primaryKey);
    else this.clear(); // a truncate
  }

  #show(version) {
    this.version = version;
    this.onversion(version);
  }

  async #ask(path, accept) {
    const answer = await fetch(`${this.#url}/${path}`, { headers: { accept }, signal: this.#ended.signal });
    if (!answer.ok) throw problem(await answer.json());
    return answer;
  }
}

function counted({ counts = {}, mutation_count: sum }, type) {
  if (!(type in counts) && sum === undefined) {
    throw problem({ detail: `the grant hides how many rows of ${type} a version has`, code: "NOT_PERMITTED" });
  }
  return counts[type] ?? 0;
}

function problem({ detail, code, retriable = false }) {
  return Object.assign(new Error(detail), { code, retriable });
}

// The pieces of a body between separators; a body that says nothing for long is cut.
async function* pieces(body, separator) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const silence = setTimeout(() => reader.cancel(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      const found = (text + value).split(separator);
      text = found.pop();
      yield* found.filter((each) => each);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
