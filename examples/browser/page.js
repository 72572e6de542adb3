// What the pages share: where to (?server=…&catalog=… in the address), and a line for each change.

const asked = new URLSearchParams(location.search);
export const server = asked.get("server") ?? "127.0.0.1:7412";
export const catalog = asked.get("catalog") ?? "shop";

export function show({ version, index, operation, primaryKey, after }) {
  const line = `${version}:${index} ${operation} ${primaryKey} ${JSON.stringify(after)}\n`;
  document.querySelector("pre").append(line);
}
