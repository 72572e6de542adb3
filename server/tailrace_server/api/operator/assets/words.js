// Functions that format amounts and times, and that create elements.

const count = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DASH = "–";

export const number = (value) => (value === null || value === undefined ? DASH : count.format(value));

export const some = (amount, noun, many = `${noun}s`) => `${number(amount)} ${amount === 1 ? noun : many}`;

export const bytes = (value) => {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let amount = value;
  while (amount >= 1024 && unit < units.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${amount >= 1000 ? count.format(Math.round(amount)) : short.format(amount)} ${units[unit]}`;
};

export const rate = (value) => (value === null ? DASH : value >= 10 ? number(Math.round(value)) : short.format(value));

export const seconds = (value) => {
  if (value === null || value === undefined) return DASH;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${short.format(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${number(Math.round(value / 86400))} days`;
};

export const time = (micros) => clock.format(new Date(micros / 1000));

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// A second, softer line in a cell.
export const second = (text) => element("span", { class: "second" }, text);
