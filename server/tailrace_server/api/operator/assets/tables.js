// Tables that keep the same row elements while their figures change, so that an element does not lose the focus.

import { element } from "./words.js";

export class Table {
  // `columns` are [heading, class, (row, context) => text or nodes]; `identify` returns the unique key of a row.
  constructor(table, columns, identify, empty) {
    this.columns = columns;
    this.identify = identify;
    this.body = element("tbody");
    this.rows = new Map();
    const heads = columns.map(([heading, kind]) => {
      const attributes = { scope: "col", class: kind };
      return heading ? element("th", attributes, heading) : element("td", { class: kind });
    });
    const none = element("td", { class: "empty", colspan: String(columns.length) }, empty);
    this.empty = element("tr", {}, none);
    table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.show([]);
  }

  show(values, context) {
    const focused = document.activeElement;
    const shown = new Set();
    values.forEach((value, place) => {
      const id = this.identify(value);
      shown.add(id);
      const row = this.rows.get(id) ?? this.add(id);
      this.fill(row, value, context);
      if (this.body.children[place] !== row.element) {
        this.body.insertBefore(row.element, this.body.children[place] ?? null);
      }
    });
    for (const [id, row] of this.rows) {
      if (!shown.has(id)) {
        row.element.remove();
        this.rows.delete(id);
      }
    }
    if (values.length) this.empty.remove();
    else this.body.append(this.empty);
    // Moving a row takes the focus away.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  add(id) {
    const cells = this.columns.map(([, kind]) => element("td", kind ? { class: kind } : {}));
    const row = { element: element("tr", {}, ...cells), cells, said: [] };
    this.rows.set(id, row);
    return row;
  }

  // Write a cell only if its text has changed. A column returns a text, or [text to compare, function for nodes].
  fill(row, value, context) {
    this.columns.forEach(([, , say], place) => {
      const said = say(value, context);
      const [text, make] = Array.isArray(said) ? said : [said, null];
      if (row.said[place] === text) return;
      row.said[place] = text;
      row.cells[place].replaceChildren(...(make ? make() : [text]));
    });
  }
}
