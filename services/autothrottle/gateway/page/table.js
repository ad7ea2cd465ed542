// A table that sorts, filters and draws only the rows in view, so that 10,000 rows cost as much as 20.

import { h, setText } from "./dom.js";
import { count, whole } from "./format.js";

const MARGIN_ROWS = 4;
const REORDER_MS = 5000;
const UNSEEN_MS = 5000;

export class Table {
  static all = [];

  /**
   * @param label what the rows are, in plural: `brokers`
   * @param noun one row: `broker`
   * @param columns [{title, width, sort: (row) => value, cell: (row) => nodes, isFixed, isNumber, isHeader}].
   *   `isFixed`: the cell depends on the row's key only. Its elements stay, and keep the focus, while values change.
   * @param keyOf row -> its key
   * @param textOf row -> the text that the filter searches
   * @param order {column, isDescending} at the start
   * @param empty the sentence if there are no rows
   */
  constructor({ label, noun, columns, keyOf, textOf, order, empty, rowClass = () => "" }) {
    Object.assign(this, { label, noun, columns, keyOf, textOf, order, empty, rowClass });
    this.rows = [];
    this.visible = [];
    this.elements = new Map();
    this.orderedAt = 0;
    this.build();
    Table.all.push(this);
  }

  build() {
    const template = this.columns.map(({ width }) => width).join(" ");
    this.filter = h("input", { type: "search", "aria-label": `Filter ${this.label}`, placeholder: `Filter ${this.label}`, oninput: () => this.find() });
    this.sorting = h("select", { "aria-label": `Sort ${this.label}`, onchange: () => this.sortBy(Number(this.sorting.value)) });
    this.columns.forEach(({ title, sort }, n) => sort && this.sorting.append(h("option", { value: n }, `by ${title.toLowerCase()}`)));
    this.shown = h("span", { class: "faint" });
    this.matches = h("span", { class: "unseen", role: "status" });
    this.head = h("div", { class: "row head", role: "row", "aria-rowindex": 1 }, this.columns.map((column, n) => this.heading(column, n)));
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.grid = h("div", { role: "table", class: "grid", "aria-label": this.label }, h("div", { role: "rowgroup", class: "headgroup" }, this.head), this.body);
    this.note = h("p", { class: "faint", hidden: true }, this.empty);
    this.scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table of ${this.label}`, onscroll: () => this.later(), onkeydown: (event) => this.move(event) }, this.grid);
    this.element = h("div", { class: "table" }, h("div", { class: "tools" }, this.filter, this.sorting, this.shown, this.matches), this.note, this.scroll);
    this.scroll.style.setProperty("--columns", template);
    new ResizeObserver(() => this.draw()).observe(this.scroll);
    const visibility = new IntersectionObserver((entries) => {
      this.isSeen = entries.at(-1).isIntersecting; // the newest one
      if (this.isSeen && this.isStale) this.arrange(true);
    });
    visibility.observe(this.element);
  }

  heading({ title, sort, isNumber }, n) {
    const button = sort && h("button", { type: "button", onclick: () => this.sortBy(n) }, title);
    return h("div", { role: "columnheader", class: isNumber ? "number" : "" }, button || title);
  }

  sortBy(n) {
    const isSame = this.order.column === n;
    this.order = { column: n, isDescending: isSame ? !this.order.isDescending : Boolean(this.columns[n].isNumber) };
    this.arrange();
  }

  /** Shows these rows; if the table is out of sight, every 5 s only. */
  show(rows) {
    const isNew = this.rows.length === 0 || rows.length === 0;
    this.rows = rows;
    this.isStale = true;
    if (isNew || this.isSeen) return this.arrange(true);
    this.timer ??= setTimeout(() => this.isStale && this.arrange(true), UNSEEN_MS);
  }

  /** Draws all rows with their newest values for a print, and after it those in sight again. */
  print(isPrinting) {
    this.isPrinting = isPrinting;
    this.arrange(true);
  }

  /** Filters, and lets a screen reader say how many rows match; it does not say the number after each update. */
  find() {
    this.arrange();
    this.matches.textContent = this.shown.textContent;
  }

  /** Filters and sorts. While values change, the order stays for 5 s, and as long as the pointer or focus is inside. */
  arrange(isUpdate = false) {
    this.isStale = false;
    clearTimeout(this.timer);
    this.timer = undefined;
    const isBusy = isUpdate && (performance.now() - this.orderedAt < REORDER_MS || this.scroll.matches(":hover, :focus-within"));
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = words.length
      ? this.rows.filter((row) => {
          const text = this.textOf(row).toLowerCase();
          return words.every((word) => text.includes(word));
        })
      : this.rows;
    if (isBusy && this.keeps(matching)) {
      const byKey = new Map(matching.map((row) => [this.keyOf(row), row]));
      this.visible = this.visible.map((row) => byKey.get(this.keyOf(row)));
    } else {
      this.visible = this.sorted(matching);
      this.orderedAt = performance.now();
    }
    this.element.classList.toggle("single", this.rows.length < 2);
    this.element.classList.toggle("few", this.visible.length <= 12);
    const { length } = this.visible;
    setText(this.shown, length === this.rows.length ? count(length, this.noun) : `${whole(length)} of ${count(this.rows.length, this.noun)}`);
    this.note.hidden = this.rows.length > 0;
    this.scroll.hidden = this.rows.length === 0;
    this.grid.setAttribute("aria-rowcount", length + 1);
    [...this.head.children].forEach((heading, n) => {
      const isSorted = n === this.order.column;
      heading.setAttribute("aria-sort", isSorted ? (this.order.isDescending ? "descending" : "ascending") : "none");
    });
    this.sorting.value = String(this.order.column);
    this.draw();
  }

  keeps(rows) {
    if (rows.length !== this.visible.length) return false;
    const keys = new Set(this.visible.map(this.keyOf));
    return rows.every((row) => keys.has(this.keyOf(row)));
  }

  sorted(rows) {
    const { sort } = this.columns[this.order.column];
    const sign = this.order.isDescending ? -1 : 1;
    const keyed = rows.map((row, n) => [sort(row), n, row]);
    keyed.sort(([a, n], [b, m]) => {
      if (a === null || a === undefined) return b === null || b === undefined ? n - m : 1; // unknown comes last
      if (b === null || b === undefined) return -1;
      return a < b ? -sign : a > b ? sign : n - m;
    });
    return keyed.map(([, , row]) => row);
  }

  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  }

  /** Height of a row in pixels; the style sheet sets it. */
  get rowHeight() {
    return parseFloat(getComputedStyle(this.scroll).getPropertyValue("--row")) || 40;
  }

  draw() {
    const height = this.rowHeight;
    const first = this.isPrinting ? 0 : Math.max(0, Math.floor((this.scroll.scrollTop - 40) / height) - MARGIN_ROWS);
    const inSight = Math.ceil((this.scroll.scrollTop + (this.scroll.clientHeight || 600)) / height) + MARGIN_ROWS;
    const last = Math.min(this.visible.length, this.isPrinting ? Infinity : inSight);
    this.body.style.height = `${this.visible.length * height}px`;
    const drawnKeys = new Set();
    let next = this.body.firstChild;
    for (let n = first; n < last; n += 1) {
      const [key, element] = this.drawRow(this.visible[n], n, height);
      drawnKeys.add(key);
      // The order of the elements is the order of the rows, for the keyboard and screen readers. Moving an element
      // takes its focus away, so the others move around it.
      if (element !== next && !element.contains(document.activeElement)) this.body.insertBefore(element, next);
      else next = element.nextSibling;
    }
    for (const [key, { element }] of this.elements) {
      // A row with the focus stays, so that the keyboard does not lose its place.
      if (drawnKeys.has(key) || element.contains(document.activeElement)) continue;
      element.remove();
      this.elements.delete(key);
    }
  }

  drawRow(row, n, height) {
    const key = this.keyOf(row);
    let drawn = this.elements.get(key);
    if (!drawn) {
      const cells = this.columns.map(({ title, isNumber, isHeader }) =>
        h("div", { role: isHeader ? "rowheader" : "cell", class: isNumber ? "number" : "", "data-title": title }),
      );
      drawn = { element: h("div", { class: "row", role: "row" }, cells), cells, values: null, isNew: true };
      this.elements.set(key, drawn);
    }
    const values = JSON.stringify(row);
    if (values !== drawn.values) {
      this.columns.forEach((column, column_number) => {
        if (drawn.isNew || !column.isFixed) drawn.cells[column_number].replaceChildren(...[column.cell(row)].flat().filter(Boolean));
      });
      drawn.element.className = `row ${this.rowClass(row)}`;
      drawn.values = values;
      drawn.isNew = false;
    }
    drawn.element.setAttribute("aria-rowindex", n + 2);
    drawn.element.style.transform = `translateY(${n * height}px)`;
    drawn.element.dataset.n = n;
    if (!drawn.element.isConnected) this.body.append(drawn.element);
    return [key, drawn.element];
  }

  /** Arrow keys move the focus from row to row, also to rows that are not drawn yet. */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest(".row[data-n]");
    if (!step || !row || event.target.matches("input, select")) return;
    event.preventDefault();
    const n = Math.min(this.visible.length - 1, Math.max(0, Number(row.dataset.n) + step));
    const height = this.rowHeight;
    if (n * height < this.scroll.scrollTop) this.scroll.scrollTop = n * height;
    const bottom = (n + 1) * height + this.head.offsetHeight - this.scroll.clientHeight;
    if (bottom > this.scroll.scrollTop) this.scroll.scrollTop = bottom;
    this.draw();
    this.elements.get(this.keyOf(this.visible[n]))?.element.querySelector("button")?.focus({ preventScroll: true });
  }
}
