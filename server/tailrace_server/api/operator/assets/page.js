// The operator's page: requests /overview at the interval that each answer states, and displays the figures.

import { Table } from "./tables.js";
import { Tail } from "./tail.js";
import { bytes, cut, element, number, rate, second, seconds, some, time } from "./words.js";

const PATIENCE_MS = 10_000;
const AGAIN_S = 2; // Interval until the first answer states another.
const $ = (id) => document.getElementById(id);

let token = ""; // Sent only as a header and in the first message of the live tail; stored nowhere else.
let last; // The newest answer.
let lostSince;
let timer;
let paused = false;

// --- Requests ---

const ask = async (path, options = {}) => {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  return fetch(path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
};

const problem = async (answer) => {
  try {
    return (await answer.json()).detail;
  } catch {
    return `The server answers ${answer.status}.`;
  }
};

const poll = async () => {
  clearTimeout(timer);
  timer = undefined;
  if (document.hidden || paused) return;
  timer = 0; // A request is running: no second one may start.
  let pace = last?.ask_again_s ?? AGAIN_S;
  try {
    const answer = await ask("overview");
    if (answer.ok) {
      const found = await answer.json();
      pace = found.ask_again_s;
      lostSince = undefined;
      $("lost").hidden = true;
      show(found);
    } else {
      refuse(answer.status, await problem(answer));
    }
  } catch {
    lose();
  }
  if (timer === 0 && !document.hidden && !paused) timer = setTimeout(poll, pace * 1000);
};

// Without permission for the figures, hide the tables: empty tables would look like figures.
const reveal = (visible) => {
  $("figures").hidden = !visible;
  $("lines-section").hidden = !visible;
};

const refuse = (status, detail) => {
  if (status === 401 || status === 403) reveal(false);
  $("lost").hidden = false;
  $("lost").textContent = detail;
  badge(status === 401 || status === 403 ? "not permitted" : "refused", "bad-text");
  if (status === 401) askForToken(token ? detail : "This server asks who you are.");
  if (status === 403) tailAlone();
};

// Without permission for the server's figures, a caller may still follow the catalogs that it is granted.
const tailAlone = async () => {
  const answer = await ask("v1/catalogs");
  if (answer.ok) catalogChoices((await answer.json()).catalogs.map(({ name }) => ({ catalog: name })));
};

const lose = () => {
  lostSince ??= new Date();
  const since = time(lostSince.getTime() * 1000);
  const what = last ? "What stands below is from before." : "";
  $("lost").hidden = false;
  // Write the text only if it has changed: a screen reader reads each new text aloud.
  const text = `No answer from the server since ${since}; it is asked again. ${what}`;
  if ($("lost").textContent !== text) $("lost").textContent = text;
  badge("no answer", "bad-text");
};

// --- Token ---

const askForToken = (note) => {
  if (note) $("token-note").textContent = note;
  if (!$("token").hidden) return;
  $("token").hidden = false;
  $("token-open").setAttribute("aria-expanded", "true");
  $("token-text").focus();
};

const closeToken = () => {
  $("token").hidden = true;
  $("token-open").setAttribute("aria-expanded", "false");
};

const useToken = (text) => {
  token = text;
  $("token-text").value = "";
  closeToken();
  poll();
};

$("token-open").addEventListener("click", () => ($("token").hidden ? askForToken() : closeToken()));
$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token-text").value.trim());
});
$("token-forget").addEventListener("click", () => useToken(""));

// --- Figures ---

const badge = (text, kind) => {
  if ($("status").textContent === text) return;
  $("status").textContent = text;
  $("status").className = `badge ${kind}`;
};

// A cell with several lines; all but the first are displayed softer.
const lines = (first, ...rest) => {
  const shown = rest.filter(Boolean);
  return [[first, ...shown].join("\n"), () => [first, ...shown.map(second)]];
};

const link = (address, text) => element("a", { href: address }, text);

const writers = ({ writers: found }) => {
  const say = ({ name, host, batch }) => {
    const place = host ? ` on ${host}` : "";
    return batch < 0 ? `${name}${place}, no batch yet` : `${name}${place}, batch ${number(batch)}`;
  };
  if (!found?.length) return "–";
  return lines(say(found[0]), ...found.slice(1).map((each) => `before: ${say(each)}`));
};

const catalogName = ({ catalog, error }) => {
  const path = `v1/catalogs/${encodeURIComponent(catalog)}`;
  if (error) return lines(catalog, cut(error, 120));
  const links = [link(`${path}/graphql`, "GraphiQL"), " ", link(`${path}/schema`, "schema")];
  return [catalog, () => [catalog, element("span", { class: "second" }, ...links)]];
};

const waiting = ({ committed, published }) => (committed > published ? `${number(committed - published)} not published` : "");

const catalogs = new Table(
  $("catalogs"),
  [
    ["Catalog", "", catalogName],
    ["Published", "number", (each) => number(each.published)],
    ["Committed", "number", (each) => lines(number(each.committed), waiting(each))],
    ["Newest", "number", (each) => (each.newest_age_s === null ? "–" : each.error ? "–" : `${seconds(each.newest_age_s)} ago`)],
    ["Last minute", "number", (each) => (each.error ? "–" : lines(`${rate(each.records_per_s)} records/s`, `${rate(each.versions_per_s)} versions/s`))],
    ["Oldest kept", "number", (each) => each.oldest ?? "–"],
    ["Size", "number", (each) => lines(bytes(each.log_bytes), each.free_bytes ? `${bytes(each.free_bytes)} free` : "")],
    ["Written by", "", writers],
    ["Subscribers", "number", (each) => number(each.subscriptions)],
  ],
  (each) => each.catalog,
  "No catalogs yet: an ingest or a LogWriter makes them.",
);

const mode = ({ mode: now, resyncs }) => {
  const text = resyncs ? some(resyncs, "resync") : "";
  return [`${now} ${text}`, () => [element("span", { class: now === "live" ? "good" : "warn" }, now), ...(text ? [second(text)] : [])]];
};

const ending = (each) => [
  "end",
  () => {
    const button = element("button", { type: "button", "aria-label": `End the subscription of ${who(each)}` }, "End …");
    button.addEventListener("click", () => askToEnd(each));
    return [button];
  },
];

const named = ({ principal }) => (principal && principal !== "anonymous" ? principal : "");
const who = (each) => [named(each), each.peer || each.transport].filter(Boolean).join(", ");

const subscribers = new Table(
  $("subscribers"),
  [
    ["Behind", "number", (each) => lines(some(each.lag_records, "record"), seconds(each.lag_s))],
    ["Subscriber", "", (each) => lines(named(each) || each.peer || "–", named(each) && each.peer, cut(each.client, 30))],
    ["Transport", "", (each) => each.transport],
    ["Catalog", "", (each) => each.catalog],
    ["Asked for", "wide", (each) => each.criteria_text],
    ["Mode", "", mode],
    ["Demand", "number", (each) => (each.demand === null ? "its pace" : number(each.demand))],
    ["Delivered", "number", (each) => lines(number(each.delivered), bytes(each.delivered_bytes))],
    ["Open for", "number", (each) => seconds(each.age_s < 60 ? Math.round(each.age_s) : each.age_s)],
    ["", "", ending],
  ],
  (each) => each.subscription_id,
  "Nobody.",
);

const publishers = new Table(
  $("publishers"),
  [
    ["Catalog", "", (each) => each.catalog],
    ["Criteria", "wide", (each) => each.criteria_text],
    ["Subscribers", "number", (each) => number(each.subscriptions)],
    ["Ring", "number", (each) => lines(some(each.ring_captures, "capture"), bytes(each.ring_bytes))],
    ["Criteria keep", "number", (each) => bytes(each.criteria_bytes)],
    ["Evicted too early", "number", (each) => number(each.ring_evicted)],
    ["Conditions took", "number", (each) => each.conditions_image_bytes ? lines(`${each.conditions_cpu_s.toFixed(3)} s`, bytes(each.conditions_image_bytes)) : "–"],
  ],
  (each) => `${each.catalog} ${JSON.stringify(each.criteria)}`,
  "None: nobody has subscribed.",
);

const logLines = new Table(
  $("lines"),
  [
    ["When", "", (each) => time(each.timestamp)],
    ["Level", "", (each) => [each.level, () => [element("span", { class: each.level === "warning" ? "warn" : "bad-text" }, each.level)]]],
    ["What", "wide", (each) => lines(each.event, Object.entries(each.fields).map(([name, value]) => `${name}=${value}`).join("  "))],
    ["Times", "number", (each) => number(each.times)],
  ],
  (each) => each.place,
  "None since the server began, as far as it keeps them.",
);

const perSecond = (found, name) => {
  if (!last || found.up_s <= last.up_s) return null;
  return Math.max(0, (found.counters[name] - last.counters[name]) / ((found.now - last.now) / 1e6));
};

const tiles = (found) => {
  const captures = perSecond(found, "captures_delivered");
  const sent = perSecond(found, "bytes_delivered");
  const shown = [
    ["Subscribers", number(found.counters.subscriptions)],
    ["Captures a second", rate(captures)],
    ["Sent a second", sent === null ? "–" : bytes(sent)],
    ["In resync", number(found.subscriptions.filter((each) => each.mode === "resync").length)],
    ["Resyncs so far", number(found.counters.resyncs)],
    ["Ended by an error", number(found.counters.subscriptions_failed)],
  ];
  $("tiles").replaceChildren(...shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
};

const memory = ({ process_bytes, budget_bytes, accounts, waiting_for_memory }) => {
  $("memory").value = budget_bytes ? process_bytes / budget_bytes : 0;
  const parts = accounts.filter((each) => each.bytes).map((each) => `${each.name} ${bytes(each.bytes)}`);
  if (waiting_for_memory) parts.push(`${some(waiting_for_memory, "reader")} waiting for room`);
  $("memory-text").textContent = `${bytes(process_bytes)} of ${bytes(budget_bytes)} (${parts.join(", ")})`;
};

const faults = (found) => {
  $("faults").hidden = !found.length;
  const key = JSON.stringify(found);
  if ($("faults").dataset.shown === key) return;
  $("faults").dataset.shown = key;
  $("faults-list").replaceChildren(
    ...found.map(({ kind, subject, reason }) => element("li", {}, element("strong", {}, `${subject}: ${kind}`), ` ${reason}`)),
  );
};

const catalogChoices = (found) => {
  const names = found.filter((each) => !each.error).map((each) => each.catalog);
  const select = $("tail-catalog");
  if (JSON.stringify(names) === select.dataset.shown) return;
  select.dataset.shown = JSON.stringify(names);
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", {}, name)));
  if (names.includes(chosen)) select.value = chosen;
};

const filtered = (found) => {
  const wanted = $("subscribers-filter").value.trim().toLowerCase();
  if (!wanted) return found;
  const text = ({ principal, peer, client, transport, catalog, criteria_text, mode: now }) =>
    [principal, peer, client, transport, catalog, criteria_text, now].join(" ").toLowerCase();
  return found.filter((each) => text(each).includes(wanted));
};

const showSubscribers = ({ subscriptions, counters }) => {
  const shown = filtered(subscriptions);
  const of = counters.subscriptions > subscriptions.length ? `the ${number(subscriptions.length)} furthest behind of ` : "";
  $("subscribers-count").textContent = `${of}${number(counters.subscriptions)}`;
  subscribers.show(shown);
};

const show = (found) => {
  reveal(true);
  badge(found.status, found.status === "serving" ? "good" : "warn");
  $("build").textContent = `${found.version}, up for ${seconds(found.up_s)}; asked every ${found.ask_again_s} s`;
  faults(found.faults);
  tiles(found);
  memory(found.memory);
  catalogs.show(found.catalogs);
  showSubscribers(found);
  const all = found.catalogs.reduce((sum, each) => sum + (each.publishers ?? 0), 0);
  $("publishers-count").textContent = all > found.publishers.length ? `the ${found.publishers.length} that cost most of ${number(all)}` : number(found.publishers.length);
  publishers.show(found.publishers);
  logLines.show(found.lines.map((each, place) => ({ ...each, place })));
  catalogChoices(found.catalogs);
  last = found;
};

$("subscribers-filter").addEventListener("input", () => last && showSubscribers(last));

// --- Ending a subscription ---

let ends;

const askToEnd = (subscription) => {
  ends = subscription;
  const client = subscription.client ? ` (${cut(subscription.client, 60)})` : "";
  $("end-who").textContent = `${who(subscription)}${client}, on ${subscription.catalog}: ${subscription.criteria_text}`;
  $("end-fault").textContent = "";
  $("end-reason").value = "";
  $("end").showModal();
  $("end-reason").focus();
};

$("end-cancel").addEventListener("click", () => $("end").close());
$("end-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = JSON.stringify({ reason: $("end-reason").value });
  const headers = { "Content-Type": "application/json" };
  try {
    const answer = await ask(`subscriptions/${ends.subscription_id}/end`, { method: "POST", headers, body });
    if (answer.ok) {
      $("end").close();
      poll();
      return;
    }
    $("end-fault").textContent = await problem(answer);
    if (answer.status === 401) {
      $("end").close();
      askForToken($("end-fault").textContent);
    }
  } catch {
    $("end-fault").textContent = "No answer from the server; it is not known whether it was ended.";
  }
});

// --- The live tail ---

const tail = new Tail($("tail"), $("tail-note"), {
  credentials: () => token && { token },
  refused: () => askForToken("The live tail asks who you are."),
  stopped: () => ($("tail-toggle").textContent = "Follow"),
});

$("tail-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (tail.follows) {
    tail.end("Stopped.");
    return;
  }
  const catalog = $("tail-catalog").value;
  if (!catalog) return;
  tail.follow({ catalog, type: $("tail-type").value.trim(), key: $("tail-key").value.trim() });
  $("tail-toggle").textContent = "Stop";
});

// --- Pause and visibility ---

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) badge("paused", "warn");
  poll();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) tail.hide();
  else tail.show();
  poll();
});

poll();
