// The colours that the reader's system asks for.

const dark = matchMedia("(prefers-color-scheme: dark)");
const viewer = document.querySelector("rapi-doc");
const paint = () => viewer.setAttribute("theme", dark.matches ? "dark" : "light");
dark.addEventListener("change", paint);
paint();
