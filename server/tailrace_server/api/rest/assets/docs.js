// The colours that the reader's system asks for, and the path below which a proxy may have put the server. Runs
// before the viewer, which reads its attributes once.

const dark = matchMedia("(prefers-color-scheme: dark)");
const viewer = document.querySelector("rapi-doc");
const paint = () => viewer.setAttribute("theme", dark.matches ? "dark" : "light");
dark.addEventListener("change", paint);
paint();
viewer.setAttribute("server-url", new URL("..", location.href).href);
