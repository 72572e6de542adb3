// The live tail: one subscription over the WebSocket of the REST face, with a demand that a person can follow. If
// changes come faster, the tail skips some, and the page reports that.

import { Table } from "./tables.js";
import { cut, element, number, some, time } from "./words.js";

const ROWS = 200;
const DEMAND = 50;
const PAINT_MS = 250;
const BEHIND = 200; // Versions: with a larger lag, the tail skips to the newest.
const HEARTBEAT_MS = 2000;
const VALUES = 8; // Values displayed of one row.
const VALUE = 60; // Characters displayed of one value.

// Keep the text of each number, because JavaScript rounds numbers above 2^53. Browsers without `context.source` round.
const exact = (_, value, context) => (typeof value === "number" ? new Raw(context?.source ?? String(value)) : value);

class Raw {
  constructor(text) {
    this.text = text;
  }
}

const said = (value) => {
  if (value instanceof Raw) return value.text;
  if (value === undefined) return "";
  return JSON.stringify(value, (_, each) => (each instanceof Raw ? Number(each.text) : each));
};

const image = (text) => {
  if (!text) return null;
  try {
    const found = JSON.parse(text, exact);
    return found && typeof found === "object" && !(found instanceof Raw) ? found : null;
  } catch {
    return null;
  }
};

const same = (one, other) => said(one) === said(other);

// Return the changed columns of a capture as [column, old, new]; a missing value is undefined.
const changes = ({ before, after }) => {
  const [old, current] = [image(before), image(after)];
  const names = Object.keys(current ?? old ?? {});
  if (!old || !current) return names.map((name) => [name, old?.[name], current?.[name]]);
  return names.filter((name) => !same(old[name], current[name])).map((name) => [name, old[name], current[name]]);
};

const change = ([name, old, current]) => {
  const parts = [element("span", { class: "soft" }, `${name} `)];
  if (old !== undefined) parts.push(element(current === undefined ? "span" : "del", { class: "old code" }, cut(said(old), VALUE)));
  if (old !== undefined && current !== undefined) parts.push(" → ");
  if (current !== undefined) parts.push(element("span", { class: "code" }, cut(said(current), VALUE)));
  return element("span", { class: "change" }, ...parts);
};

const details = (capture) => {
  if (capture.skipped) return [element("span", { class: "warn" }, capture.skipped)];
  if (capture.area === "SCHEMA") return [cut(capture.change ?? "", 4 * VALUE)];
  const found = changes(capture);
  const more = found.length - VALUES;
  const parts = found.slice(0, VALUES).map(change);
  if (more > 0) parts.push(element("span", { class: "soft" }, `and ${some(more, "column")} more`));
  if (capture.omittedBytes) parts.push(`${number(capture.omittedBytes)} bytes left out`);
  return parts;
};

const word = ({ skipped, area, operation, before, after }) => {
  if (skipped) return "";
  if (area === "SCHEMA") return "schema";
  if (operation === "UPSERT") return before ? "update" : after ? "insert" : "upsert";
  return operation.toLowerCase();
};

const COLUMNS = [
  ["Version", "number", (row) => (row.skipped ? "" : `${row.version}:${row.index}`)],
  ["Committed", "", (row) => (row.skipped ? "" : time(row.commitTimestamp))],
  ["Operation", "", word],
  ["Entity type", "", (row) => row.entityType ?? ""],
  ["Key", "", (row) => cut(row.primaryKey ?? "", VALUE)],
  ["Change, old → new", "wide", (row) => [row.id, () => details(row)]],
];

export class Tail {
  // `credentials` returns the payload of connection_init; `refused` is called if the server requires another token.
  constructor(table, note, { credentials, refused, stopped }) {
    this.table = new Table(table, COLUMNS, (row) => row.id, "Nothing yet.");
    this.note = note;
    this.credentials = credentials;
    this.refused = refused;
    this.stopped = stopped;
    this.rows = [];
    this.made = 0;
  }

  get follows() {
    return this.wanted !== undefined;
  }

  follow(wanted) {
    this.stop();
    this.rows = [];
    this.table.show(this.rows);
    this.wanted = wanted;
    this.open();
  }

  stop(why = "Stopped.") {
    this.wanted = undefined;
    this.close();
    this.note.textContent = why;
  }

  // A hidden page receives nothing.
  hide() {
    if (!this.follows) return;
    this.close();
    this.note.textContent = "Paused while the page is hidden.";
  }

  show() {
    if (this.follows && !this.socket) this.open();
  }

  close() {
    clearTimeout(this.painting);
    this.painting = undefined;
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
  }

  open() {
    this.version = undefined;
    this.waiting = [];
    const place = new URL(`v1/catalogs/${encodeURIComponent(this.wanted.catalog)}/changes/live`, location.href);
    place.protocol = place.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(place, ["tailrace.v1"]);
    this.socket = socket;
    this.note.textContent = "Connecting …";
    socket.onopen = () => this.say("connection_init", this.credentials());
    socket.onmessage = ({ data }) => socket === this.socket && this.hear(JSON.parse(data));
    socket.onclose = ({ code, reason }) => {
      if (socket !== this.socket) return;
      this.socket = undefined;
      this.end(code === 4401 || code === 4403 ? reason || "Not permitted." : reason || "The connection is lost.");
      if (code === 4401) this.refused();
    };
  }

  say(type, payload, id) {
    this.socket?.send(JSON.stringify({ type, ...(id && { id }), ...(payload && { payload }) }));
  }

  subscribe() {
    const { type, key } = this.wanted;
    const criteria = { area: "DATA", ...(type && { entityType: [type] }), ...(key && { primaryKey: [key] }) };
    const schema = { area: "SCHEMA", ...(type && { entityType: [type] }) };
    this.id = String((this.made += 1));
    const asked = { criteria: key ? [criteria] : [criteria, schema], body: ["change", "before", "after"] };
    const form = { values: "decoded", bodies: "text", heartbeatIntervalMs: HEARTBEAT_MS, request: DEMAND };
    this.say("subscribe", { ...asked, ...form }, this.id);
  }

  hear({ type, id, payload }) {
    if (type === "connection_ack") this.subscribe();
    else if (type === "ping") this.say("pong");
    else if (id !== this.id) return; // A message of an earlier subscription, which was skipped.
    else if (type === "subscribed") this.begun(payload);
    else if (type === "next") this.take(payload.captures);
    else if (type === "heartbeat") this.heartbeat(payload);
    else if (type === "error") this.end(payload.detail);
    else if (type === "complete") this.end("The server has ended it.");
  }

  begun({ start, publishedVersion, unknownNames }) {
    const unknown = unknownNames?.length ? ` Nothing is called ${unknownNames.join(", ")} yet.` : "";
    this.note.textContent = `Follows ${this.wanted.catalog}, the newest first.${unknown}`;
    if (this.version !== undefined && publishedVersion > this.version) {
      const skipped = `${some(publishedVersion - this.version, "version")} skipped: more comes than can be read`;
      this.push([{ skipped }]);
    }
    this.version = start?.version ?? publishedVersion;
  }

  take(captures) {
    this.waiting.push(...captures);
    this.painting ??= setTimeout(() => {
      this.painting = undefined;
      const shown = this.waiting;
      this.waiting = [];
      this.push(shown);
      // Request as many captures as were displayed: the demand is the pace of the page.
      this.say("request", { n: shown.length }, this.id);
    }, PAINT_MS);
  }

  push(captures) {
    for (const each of captures) this.rows.unshift({ ...each, id: (this.made += 1) });
    this.rows.splice(ROWS);
    this.table.show(this.rows);
  }

  // If the lag is too large, subscribe again at the newest version; `begun` reports how much was skipped.
  heartbeat({ publishedVersion, resumeCursor }) {
    const passed = Number(resumeCursor.split(".")[2]);
    if (publishedVersion - passed <= BEHIND) return;
    this.version = passed;
    this.say("complete", undefined, this.id);
    this.subscribe();
  }

  end(why) {
    this.stop(why);
    this.stopped();
  }
}
