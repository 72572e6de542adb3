// A line to type a token, if the server requires one. The token is stored only in this closure, until the page closes.

const tokens = (() => {
  let token = "";
  let asking;

  const typed = () =>
    new Promise((resolve) => {
      const make = (tag, attributes) => Object.assign(document.createElement(tag), attributes);
      const form = make("form", { className: "token" });
      const input = make("input", { type: "password", autocomplete: "off", required: true });
      const label = make("label", {});
      label.append(token ? "That token was refused. Another one: " : "This server asks who you are. Token: ", input);
      form.append(label, make("button", { textContent: "Use it" }));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        token = input.value.trim();
        form.remove();
        resolve();
      });
      document.body.prepend(form);
      input.focus();
    });

  const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

  // Like fetch, but a 401 asks the reader for a token and then tries again.
  const ask = async (url, options = {}) => {
    for (;;) {
      const shown = token;
      const answer = await fetch(url, { ...options, headers: { ...options.headers, ...headers() } });
      if (answer.status !== 401) return answer;
      if (shown !== token) continue; // The reader has typed a token for another request meanwhile.
      asking ??= typed().finally(() => (asking = undefined));
      await asking;
    }
  };

  return {
    ask,
    headers,
    get current() {
      return token || undefined;
    },
  };
})();
