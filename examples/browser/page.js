// What the pages share: where to (?server=…&catalog=… in the address), and a line for each change.

const asked = new URLSearchParams(location.search);
export const server = asked.get("server") ?? "127.0.0.1:7412";
export const catalog = asked.get("catalog") ?? "shop";

export function show({ version, index, operation, primaryKey, after, omittedBytes }) {
  let image = JSON.stringify(after, (name, value) => (name === "__typename" ? undefined : value)); // Apollo's
  // A row above maxMessageBytes, 4 MiB unless a page asks for another bound, comes without its body.
  if (omittedBytes) image = `(${omittedBytes} bytes left out)`;
  document.querySelector("pre").append(`${version}:${index} ${operation} ${primaryKey} ${image}\n`);
}

export function end(reason) {
  document.querySelector("pre").append(`the server refused to go on: ${reason}\n`);
}
