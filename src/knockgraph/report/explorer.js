"use strict";
(() => {
  // Names come from files: they are only ever set as text, never as HTML.
  const D = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id);
  const el = (tag, props = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), props);
    made.append(...inside);
    return made;
  };
  const number = v => v === null || v === undefined ? "–" : v.toFixed(3).replace("-", "−");
  const standard = g => D.genes[g][1] || D.genes[g][0];
  const both = g => D.genes[g][1] ? `${D.genes[g][1]} (${D.genes[g][0]})` : D.genes[g][0];
  const range = (p, own) => {
    const width = D.widths ? own : D.half_width;
    return width === null ? "–" : `${number(p - width)} to ${number(p + width)}`;
  };
  const key = (a, b) => a < b ? `${a} ${b}` : `${b} ${a}`;
  const why = new Map(D.why.map(one => [key(one.pair[0], one.pair[1]), one]));

  // Name → genes, by the rules of the graph: systematic, standard, alias, each as it stands, then ignoring case.
  const rules = [new Map(), new Map(), new Map()], folded = [new Map(), new Map(), new Map()];
  const put = (map, name, g) => map.has(name) ? map.get(name).add(g) : map.set(name, new Set([g]));
  D.genes.forEach((names, g) => names.forEach((name, rank) => {
    if (!name) return;
    put(rules[Math.min(rank, 2)], name, g);
    put(folded[Math.min(rank, 2)], name.toLowerCase(), g);
  }));
  const find = text => {
    for (const map of rules) if (map.has(text)) return [...map.get(text)];
    for (const map of folded) if (map.has(text.toLowerCase())) return [...map.get(text.toLowerCase())];
    return [];
  };
  const matching = (text, most) => {
    const wanted = text.toLowerCase(), starts = new Set(), holds = new Set();
    for (const map of folded) for (const [name, genes] of map) {
      const where = name.indexOf(wanted);
      if (where >= 0) for (const g of genes) (where === 0 ? starts : holds).add(g);
    }
    const shownFirst = (a, b) => (b in D.shown) - (a in D.shown);
    return [...new Set([...[...starts].sort(shownFirst), ...[...holds].sort(shownFirst)])].slice(0, most);
  };
  const distance = (a, b) => {
    let row = Array.from({length: b.length + 1}, (_, j) => j);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++)
        next.push(Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] !== b[j - 1])));
      row = next;
    }
    return row[b.length];
  };
  const near = text => {
    const wanted = text.toLowerCase(), found = new Map();
    for (const map of folded) for (const [name, genes] of map)
      if (Math.abs(name.length - wanted.length) <= 2) {
        const d = distance(wanted, name);
        if (d <= 2) for (const g of genes) found.set(g, Math.min(d, found.get(g) ?? 9));
      }
    return [...found].sort((a, b) => a[1] - b[1]).slice(0, 5).map(pair => pair[0]);
  };

  const geneButton = g => el("button", {type: "button", className: "gene", onclick: () => go(g)}, standard(g),
    D.genes[g][1] ? el("span", {className: "systematic"}, ` (${D.genes[g][0]})`) : "");
  const tell = (text, genes = []) => {
    at("message").replaceChildren(text, ...genes.flatMap(g => [" ", geneButton(g)]));
  };
  const suggest = () => {
    const text = at("gene").value.trim();
    const found = text ? matching(text, 8) : [];
    at("suggestions").replaceChildren(...found.map(g => el("li", {}, geneButton(g))));
  };
  const search = text => {
    const found = find(text);
    if (found.length === 1) return go(found[0]);
    if (found.length > 1) return tell(`“${text}” may mean several genes; choose one:`, found);
    const some = matching(text, 2);
    if (text && some.length === 1) return go(some[0]);
    const close = text ? [...new Set([...matching(text, 5), ...near(text)])].slice(0, 5) : [];
    tell(!text ? "Type the name of a gene." : close.length ? `No gene is called “${text}”; did you mean:`
      : `No gene is called “${text}”; check the spelling.`, close);
    at("suggestions").replaceChildren();
  };

  // A table whose columns sort: [heading, value of a row, cell of a row].
  const table = (columns, rows, order) => {
    const head = el("tr"), body = el("tbody");
    const draw = () => {
      const value = columns[order.column][1];
      const sorted = [...rows].sort((a, b) => {
        const x = value(a), y = value(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1);
      });
      body.replaceChildren(...sorted.map(row => el("tr", {}, ...columns.map(c => el("td", {}, c[2](row))))));
      head.replaceChildren(...columns.map((c, k) => {
        const on = order.column === k;
        const th = el("th", {scope: "col"});
        th.setAttribute("aria-sort", on ? (order.down ? "descending" : "ascending") : "none");
        th.append(el("button", {type: "button", className: "sort", onclick: () => {
          order.down = on ? !order.down : Boolean(c[3]);
          order.column = k;
          draw();
        }}, c[0] + (on ? (order.down ? " ▾" : " ▴") : "")));
        return th;
      }));
    };
    draw();
    return el("div", {className: "scroll"}, el("table", {}, el("thead", {}, head), body));
  };

  const extreme = v => v === null ? null : Math.abs(v - D.wild_type);
  const farthest = r => Math.max(extreme(r[1]) ?? 0, extreme(r[2]) ?? 0);
  const shownPart = v => v > 0 ? `+${number(v)}` : number(v);
  const explain = one => {
    const parts = el("table", {}, el("tbody", {}, ...one.by.map(([gene, through, value]) =>
      el("tr", {}, el("td", {}, `${gene} ${through}`.trim()), el("td", {}, shownPart(value))))));
    const around = el("table", {}, el("tbody", {}, ...one.near.map(([gene, through, of, value]) =>
      el("tr", {}, el("td", {}, `${gene}, ${through} of ${of}`), el("td", {}, shownPart(value))))));
    at("why").replaceChildren(
      el("h2", {}, `Why ${standard(one.pair[0])} + ${standard(one.pair[1])}`), el("p", {}, `${one.words}.`),
      el("div", {className: "two"}, el("div", {}, el("h3", {}, "By deleted gene and relation"), parts),
        el("div", {}, el("h3", {}, "The strongest neighbours"), one.near.length ? around : el("p", {}, "No edge has a part."))));
    at("why").scrollIntoView({block: "nearest"});
  };
  const predicted = (a, b, value) => {
    const one = why.get(key(a, b));
    const button = one ? [el("button", {type: "button", className: "gene", onclick: () => explain(one)}, "why"), " "] : [];
    return el("span", {}, ...button, number(value));
  };

  const partners = (g, found, kind) => {
    const rows = found.partners.filter(r => kind === "all" || (r[1] === null) === (kind === "new"));
    if (!rows.length) return el("p", {}, kind === "measured" ? "No measured pair." : "No predicted pair.");
    const columns = [
      ["partner", r => standard(r[0]).toLowerCase(), r => geneButton(r[0])],
      ["measured", r => r[1], r => number(r[1]) + (r[4] > 1 ? ` (${r[4]}×)` : ""), true],
      ["predicted", r => r[2], r => predicted(g, r[0], r[2]), true],
      [`${D.coverage} interval`, r => r[2], r => range(r[2], r[5]), true],
      ["used for", r => r[1] === null ? "new" : D.parts[r[3]], r => r[1] === null ? "new" : D.parts[r[3]]],
      ["from wild type", farthest, r => number(farthest(r)), true],
    ].filter((c, k) => k !== 3 || D.widths || D.half_width !== null);
    return table(columns, rows, {column: columns.length - 1, down: true});
  };

  const go = g => {
    tell("");
    at("suggestions").replaceChildren();
    at("gene").value = standard(g);
    at("why").replaceChildren();
    try { history.replaceState(null, "", "#" + encodeURIComponent(D.genes[g][0])); } catch { /* not everywhere */ }
    const found = D.shown[g], here = at("answer");
    if (!found) {
      here.replaceChildren(el("h2", {}, both(g)), el("p", {}, D.elsewhere.replace("GENE", D.genes[g][0])));
      return;
    }
    const single = found.single;
    const about = el("p", {}, `Alone: measured ${number(single[0])}, predicted ${number(single[1])}. ` +
      `${found.measured} measured and ${found.predicted} predicted pairs; ${found.cut}.`);
    const place = el("div", {}, partners(g, found, "all"));
    const choose = el("div", {className: "kinds"}, ...["all", "new", "measured"].map(kind => el("label", {},
      el("input", {type: "radio", name: "kind", value: kind, checked: kind === "all",
        onchange: () => place.replaceChildren(partners(g, found, kind))}), ` ${kind}`)));
    const lines = D.relations.map((name, k) => [name, ...found.near[k]]).filter(line => line[1] > 0);
    const beside = lines.map(([name, total, some]) => el("p", {}, el("strong", {}, `${name} (${total}): `),
      ...some.flatMap(other => [geneButton(other), " "]), total > some.length ? `and ${total - some.length} more` : ""));
    here.replaceChildren(el("h2", {}, both(g)), about, choose, place, el("h2", {}, "Neighbours"),
      ...(beside.length ? beside : [el("p", {}, "No relation has an edge of this gene.")]));
  };

  const home = () => {
    const columns = [
      ["pair", r => standard(r[0]).toLowerCase(), r => el("span", {}, geneButton(r[0]), " + ", geneButton(r[1]))],
      ["predicted", r => r[2], r => predicted(r[0], r[1], r[2]), true],
      [`${D.coverage} interval`, r => r[2], r => range(r[2], r[3]), true],
      ["from wild type", r => extreme(r[2]), r => number(extreme(r[2])), true],
    ].filter((c, k) => k !== 2 || D.widths || D.half_width !== null);
    at("top").append(table(columns, D.top, {column: columns.length - 1, down: true}));
  };

  at("gene").addEventListener("input", suggest);
  at("search").addEventListener("submit", event => { event.preventDefault(); search(at("gene").value.trim()); });
  home();
  if (location.hash.length > 1) {
    let asked = location.hash.slice(1);
    try { asked = decodeURIComponent(asked); } catch { /* as it stands */ }
    search(asked);
  }
})();
