// Set the colours that the reader's system prefers, and the server's path, which a proxy may have changed. Runs before
// the viewer, which reads its attributes only once.

const dark = matchMedia("(prefers-color-scheme: dark)");
const viewer = document.querySelector("rapi-doc");
const paint = () => viewer.setAttribute("theme", dark.matches ? "dark" : "light");
dark.addEventListener("change", paint);
paint();
viewer.setAttribute("server-url", new URL("..", location.href).href);

// The viewer's fields have no labels for screen readers. They are in shadow roots, so watch each root from its start.
const NAMES = { SELECT: "type of the body", TEXTAREA: "body" };
const name = (root) => {
  root.querySelector("nav.nav-bar")?.setAttribute("aria-label", "documents");
  for (const field of root.querySelectorAll("input, select, textarea")) {
    if (field.labels?.length || field.hasAttribute("aria-label")) continue;
    const said = field.dataset.pname || NAMES[field.tagName] || field.placeholder || "value";
    field.setAttribute("aria-label", said);
  }
};
const attachShadow = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) {
  const root = attachShadow.call(this, options);
  new MutationObserver(() => name(root)).observe(root, { childList: true, subtree: true });
  return root;
};

// Load the document, and send requests that are tried out, with the token that the reader has typed, if any.
viewer.addEventListener("before-try", ({ detail }) => {
  for (const [name, value] of Object.entries(tokens.headers())) detail.request.headers.set(name, value);
});
customElements.whenDefined("rapi-doc").then(async () => {
  const answer = await tokens.ask("openapi.json");
  viewer.loadSpec(await answer.json());
});
