// Where the server asks who is there: a line to type a token, which stays in this closure and is gone with the page.

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

  // As fetch, but a 401 is asked about and tried again.
  const ask = async (url, options = {}) => {
    for (;;) {
      const shown = token;
      const answer = await fetch(url, { ...options, headers: { ...options.headers, ...headers() } });
      if (answer.status !== 401) return answer;
      if (shown !== token) continue; // another request has asked meanwhile
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
