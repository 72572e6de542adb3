// The AsyncAPI document as a page: channels, messages with who sends them, and the schemas that they refer to.

const element = (tag, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
};

// Text of the document, with `code` in it.
const prose = (text) =>
  text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));

const paragraph = (text) => (text ? [element("p", {}, ...prose(text))] : []);

const nameOf = (reference) => reference.slice(reference.lastIndexOf("/") + 1);

// A schema in a few words; components by a link.
const words = (schema) => {
  if (schema.$ref) {
    const name = nameOf(schema.$ref);
    return [element("a", { href: `#${name}` }, name)];
  }
  const alternatives = schema.oneOf ?? schema.anyOf;
  if (alternatives) return alternatives.flatMap((each, place) => (place ? [" or ", ...words(each)] : words(each)));
  if (schema.const !== undefined) return [element("code", {}, JSON.stringify(schema.const))];
  if (schema.enum) return schema.enum.flatMap((each, place) => [place ? ", " : "", element("code", {}, each)]);
  if (schema.items) return ["list of ", ...words(schema.items)];
  const types = [schema.type ?? "anything"].flat().join(" or ");
  return [schema.pattern ? `${types} like ` : types, ...(schema.pattern ? [element("code", {}, schema.pattern)] : [])];
};

const members = (schema) => {
  const rows = Object.entries(schema.properties ?? {}).map(([name, member]) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, name)),
      element("td", {}, ...words(member), ...paragraph(member.description)),
      element("td", {}, schema.required?.includes(name) ? "always" : ""),
    ),
  );
  const head = element("tr", {}, ...["member", "is", "comes"].map((each) => element("th", {}, each)));
  return rows.length ? [element("table", {}, head, ...rows)] : [element("p", {}, ...words(schema))];
};

const section = (name, about, schema, who = "") =>
  element(
    "section",
    { id: name },
    element("h3", {}, name, element("span", { className: "who" }, who)),
    ...paragraph(about),
    ...members(schema),
  );

// Which side sends a message, as the operations say; they are written from the client's side.
const senders = (spec) => {
  const found = {};
  for (const { action, messages } of Object.values(spec.operations)) {
    for (const { $ref } of messages) (found[nameOf($ref)] ??= new Set()).add(action);
  }
  return (name) => (found[name].size > 1 ? "both ways" : found[name].has("send") ? "client → server" : "server → client");
};

const page = (spec) => {
  const sender = senders(spec);
  return [
    element("h1", {}, spec.info.title),
    ...paragraph(spec.info.description),
    element("h2", {}, "Channels"),
    ...Object.values(spec.channels).map((each) => element("p", {}, element("code", {}, each.address))),
    element("h2", {}, "Messages"),
    ...Object.entries(spec.components.messages).map(([name, { summary, payload }]) =>
      section(name, summary, payload, sender(name)),
    ),
    element("h2", {}, "Schemas"),
    ...Object.entries(spec.components.schemas).map(([name, schema]) => section(name, schema.description, schema)),
  ];
};

const show = async () => {
  const place = document.getElementById("document");
  try {
    const answer = await tokens.ask("../asyncapi.json");
    place.replaceChildren(...page(await answer.json()));
  } catch (error) {
    place.textContent = `The document could not be shown: ${error}`;
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
};

show();
