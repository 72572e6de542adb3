// Tables whose rows stay the same elements while their figures change: what has the focus keeps it.

import { element } from "./words.js";

export class Table {
  // Columns: [heading, class, (row, context) => text or nodes]; `identify` names a row among the others.
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
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  add(id) {
    const cells = this.columns.map(([, kind]) => element("td", kind ? { class: kind } : {}));
    const row = { element: element("tr", {}, ...cells), cells, said: [] };
    this.rows.set(id, row);
    return row;
  }

  // A cell is written only when it says something else: a column gives a text, or [a text for comparison, nodes].
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
