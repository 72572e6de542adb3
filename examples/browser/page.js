// What the pages share: where to (?server=…&catalog=… in the address), and a line for each change.

const asked = new URLSearchParams(location.search);
export const server = asked.get("server") ?? "127.0.0.1:7412";
export const catalog = asked.get("catalog") ?? "shop";

export function show({ version, index, operation, primaryKey, after }) {
  const image = JSON.stringify(after, (name, value) => (name === "__typename" ? undefined : value)); // Apollo's
  document.querySelector("pre").append(`${version}:${index} ${operation} ${primaryKey} ${image}\n`);
}

export function end(reason) {
  document.querySelector("pre").append(`the server refused to go on: ${reason}\n`);
}
