// The list of runs: filters, sorting, a chart of one figure over its runs, two runs to compare. The data is in #data (see browse.rs).
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const el = id => document.getElementById(id);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, props, ...inside) => { const e = Object.assign(document.createElement(tag), props); e.append(...inside); return e; };
  const digits = v => v >= 1000 ? String(Math.round(v)) : String(Number(v.toPrecision(3)));
  const unit = s => s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const count = n => n === 1 ? "1 run" : `${n} runs`;
  const date = s => s ? new Date(s * 1000).toISOString().slice(0, 16).replace("T", " ") : "–";
  const shell = text => /^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const path = run => shell(`${data.folder.replace(/\/$/, "")}/${run.name}`);
  data.runs.forEach((run, i) => {
    run.at = i;
    run.experiment = `${run.target}, ${run.load || run.kind}`;
    run.text = [run.name, run.label, run.version, run.target, run.load].join(" ").toLowerCase();
  });

  const names = [...new Set(data.runs.flatMap(run => Object.keys(run.figures ?? {})))];
  const order = ["ttft p99", "tpot p99", "e2e p99"];
  const rank = name => order.includes(name) ? order.indexOf(name) : order.length;
  names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const fill = (id, of) => {
    const counts = new Map();
    for (const run of data.runs) { const value = of(run); if (value) counts.set(value, (counts.get(value) ?? 0) + 1); }
    const sorted = [...counts].sort((a, b) => b[1] - a[1] || String(a[0]).localeCompare(String(b[0])));
    for (const [value, count] of sorted.slice(0, 500)) el(id).append(make("option", { value, textContent: `${value} (${count})` }));
    el(id).closest("label").hidden = !counts.size;
  };
  fill("experiment", run => run.experiment);
  fill("label", run => run.label);
  fill("trust", run => run.trust);
  fill("slo", run => run.slo);
  for (const name of names) el("figure").append(make("option", { value: name, textContent: name }));

  // Each column: its name, what it sorts by, whether it is text, its cell. A column that no run fills is left out.
  const left = of => run => make("td", { className: "left", textContent: of(run) ?? "", title: of(run) ?? "" });
  const word = of => run => make("td", { className: `left ${of(run) ?? ""}`, textContent: of(run) ?? "–" });
  const columns = [
    ["run", run => run.name, true, run => name(run)], ["label", run => run.label ?? "", true, left(run => run.label)],
    ["version", run => run.version ?? "", true, left(run => run.version)], ["began (UTC)", run => run.began_s, false, run => make("td", { textContent: date(run.began_s) })],
    ["target", run => run.target, true, left(run => run.target)], ["load", run => run.load, true, left(run => run.load)],
    ["measurement", run => run.trust ?? "", true, word(run => run.trust)], ["state", run => run.state ?? "", true, left(run => run.state)],
    ["SLO", run => run.slo ?? "", true, word(run => run.slo)],
    ...names.filter(name => order.includes(name)).map(name => [name, run => run.figures?.[name]?.[0] ?? Infinity, false, run => cell(run, name)]),
    ["failed", run => run.failed ?? -1, false, run => make("td", { textContent: run.failed == null ? "–" : digits(run.failed * 100) + " %" })],
  ].filter(([name, of]) => name === "run" || data.runs.some(run => of(run)));
  let sorted = { column: columns.findIndex(([name]) => name.startsWith("began")), down: true }, shown = 100, chosen = [], plot;

  const matching = () => {
    const words = el("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    return data.runs.filter(run => words.every(word => run.text.includes(word)) &&
      ["experiment", "label", "trust", "slo"].every(id => !el(id).value || run[id] === el(id).value));
  };

  const cell = (run, name) => {
    const figure = run.figures?.[name];
    if (!figure) return make("td", { textContent: "–" });
    const [value, low, high, few] = figure, [times, suffix] = unit(value);
    const interval = `[${digits(low * times)}, ${high == null ? "∞" : digits(high * times)}]`;
    return make("td", { title: few ? "based on few requests" : "" }, `${digits(value * times)} ${suffix}${few ? "*" : ""}`, make("span", { className: "ci", textContent: interval }));
  };

  const name = run => {
    const box = make("input", { type: "checkbox", checked: chosen.includes(run.at), ariaLabel: `select ${run.name}` });
    box.onchange = () => {
      chosen = box.checked ? [...chosen, run.at].slice(-2) : chosen.filter(at => at !== run.at);
      table();
    };
    const link = data.live && run.trust ? `run?at=${encodeURIComponent(run.name)}` : run.report;
    const shown = link ? make("a", { href: link, textContent: run.name }) : make("span", { textContent: run.name, title: `plimsoll show ${path(run)} --html` });
    return make("td", { className: "left" }, box, " ", shown);
  };
  const row = run => make("tr", {}, ...columns.map(([, , , draw]) => draw(run)));

  function table() {
    const runs = matching(), [, of] = columns[sorted.column];
    runs.sort((a, b) => { const [x, y] = [of(a), of(b)]; return (x < y ? -1 : x > y ? 1 : b.at - a.at) * (sorted.down ? -1 : 1); });
    const head = columns.map(([name, , left], i) => {
      const arrow = i === sorted.column ? (sorted.down ? " ↓" : " ↑") : "";
      const button = make("button", { type: "button", textContent: name + arrow });
      button.onclick = () => { sorted = { column: i, down: i === sorted.column ? !sorted.down : !left }; table(); };
      return make("th", { className: left ? "left" : "", scope: "col" }, button);
    });
    el("runs").tHead.replaceChildren(make("tr", {}, ...head));
    el("runs").tBodies[0].replaceChildren(...runs.slice(0, shown).map(row));
    el("more").hidden = runs.length <= shown;
    el("more").textContent = `Show 100 more of ${runs.length}`;
    el("count").textContent = runs.length === data.runs.length ? count(runs.length) : `${runs.length} of ${count(data.runs.length)}`;
    el("compare").disabled = chosen.length !== 2;
    const [a, b] = chosen.map(at => data.runs[at]);
    el("hint").textContent = b ? `plimsoll compare ${path(a)} ${path(b)}` : a ? `Base: ${a.name}. Select the candidate.` : "Select two runs: the first is the base.";
    return runs;
  }

  function chart() {
    const figure = el("figure").value, filtered = matching();
    const has = run => run.figures?.[figure] && run.trust !== "invalid";
    const of = experiment => filtered.filter(run => run.experiment === experiment && has(run));
    // Without a choice: the newest experiment with a course, else that of the newest run.
    const seen = [...new Set(filtered.filter(has).map(run => run.experiment))];
    const experiment = el("experiment").value || seen.find(name => of(name).length > 1) || seen[0];
    const runs = of(experiment).sort((a, b) => a.began_s - b.began_s);
    plot?.destroy();
    plot = undefined;
    el("changed").textContent = "";
    el("charted").textContent = runs.length ? `${figure} of ${experiment}: ${count(runs.length)}, the newest right` : "No selected run has this figure.";
    el("plot").ariaLabel = el("charted").textContent;
    if (!runs.length) return;
    const by = el("colour").value, groups = [...new Set(runs.map(run => (by && run[by]) || ""))];
    const color = i => css(`--s${i % 5}`);
    const values = runs.map(run => run.figures[figure]);
    const scale = unit(Math.max(...values.map(v => v[0])));
    const column = group => runs.map((run, i) => ((by && run[by]) || "") === group ? values[i][0] * scale[0] : null);
    const top = Math.max(...values.flatMap(v => [v[0], v[2] ?? v[0]])) * scale[0];
    const grid = { stroke: css("--line"), width: 1 }, axis = { stroke: css("--soft"), grid, ticks: grid };
    const intervals = u => {
      const { ctx } = u, dpr = devicePixelRatio || 1;
      ctx.save();
      ctx.lineWidth = Math.max(1, Math.min(4, u.bbox.width / dpr / runs.length / 3)) * dpr;
      ctx.globalAlpha = .35;
      values.forEach(([value, low, high], i) => {
        ctx.strokeStyle = color(groups.indexOf((by && runs[i][by]) || ""));
        const x = u.valToPos(i, "x", true);
        ctx.beginPath();
        ctx.moveTo(x, u.valToPos(low * scale[0], "y", true));
        ctx.lineTo(x, high == null ? u.bbox.top : u.valToPos(high * scale[0], "y", true));
        ctx.stroke();
      });
      ctx.restore();
    };
    let changes = data.changes?.[experiment]?.[figure] ?? [];
    const marks = u => {
      const { ctx, bbox } = u, dpr = devicePixelRatio || 1;
      ctx.save();
      ctx.font = `${11 * dpr}px system-ui, sans-serif`;
      ctx.fillStyle = ctx.strokeStyle = css("--ink");
      ctx.setLineDash([5 * dpr, 4 * dpr]);
      changes.forEach((change, i) => {
        const at = runs.findIndex(run => run.id === change.at);
        if (at < 0) return;
        const x = u.valToPos(at - .5, "x", true), right = x > bbox.left + bbox.width * .7;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.textAlign = right ? "right" : "left";
        ctx.fillText(percent(change.ratio[0]), x + (right ? -5 : 5) * dpr, bbox.top + (13 + 15 * (i % 3)) * dpr);
      });
      ctx.restore();
    };
    const size = () => ({ width: Math.max(240, el("plot").clientWidth), height: Math.max(220, Math.min(320, el("plot").clientWidth * .5)) });
    const label = group => group || (by ? `no ${by}` : figure);
    plot = new uPlot({
      ...size(),
      series: [
        { label: "run", value: (u, i) => i == null || !runs[i] ? "–" : `${runs[i].name}, ${date(runs[i].began_s)}` },
        ...groups.map((group, i) => ({ label: label(group), stroke: color(i), width: by ? 0 : 1, points: { show: true, size: runs.length > 300 ? 4 : 7, stroke: color(i), fill: color(i) }, value: (u, v) => v == null ? "–" : `${digits(v)} ${scale[1]}` })),
      ],
      scales: { x: { time: false, range: [-.7, runs.length - .3] }, y: { range: [0, top * 1.12] } },
      axes: [
        { ...axis, values: (u, at) => at.map(i => runs[i] ? date(runs[i].began_s).slice(5, 10) : ""), size: 34 },
        { ...axis, label: `${figure} (${scale[1]})`, labelSize: 20, size: 56, values: (u, at) => at.map(digits) },
      ],
      legend: { show: groups.length <= 12 },
      cursor: { drag: { x: false, y: false } },
      hooks: { draw: [intervals, marks] },
    }, [runs.map((_, i) => i), ...groups.map(column)], el("plot"));
    plot.over.onclick = () => { const run = runs[plot.cursor.idx]; if (run && data.live) location.href = `run?at=${encodeURIComponent(run.name)}`; };
    const told = () => {
      const say = changes.map(change => {
        const run = runs.find(run => run.id === change.at), [ratio, low, high] = change.ratio;
        return run && `${percent(ratio)} [${percent(low)}, ${percent(high)}] since ${run.version && by === "version" ? `${run.version}, ` : ""}${run.name}`;
      }).filter(Boolean);
      el("changed").textContent = say.length ? `Changes: ${say.join("; ")}.` : runs.length < data.fewest ? `Change detection needs ${data.fewest} runs.` : "No change of this figure.";
      plot.redraw();
    };
    told();
    if (data.live && runs.length >= data.fewest) {
      el("changed").textContent = "Searching for changes …";
      const asked = plot;
      fetch(`changes?experiment=${encodeURIComponent(experiment)}`).then(answer => answer.json()).then(found => {
        (data.changes ??= {})[experiment] = found;
        if (asked === plot) { changes = found[figure] ?? []; told(); }
      }).catch(() => { el("changed").textContent = "The server does not answer: changes are unknown. Restart the command that opened this page."; });
    }
  }
  const percent = ratio => (ratio >= 1 ? "+" : "−") + digits(Math.abs(ratio - 1) * 100) + " %";

  const both = () => { shown = 100; table(); chart(); };
  el("filters").onsubmit = event => event.preventDefault();
  let soon;
  el("find").oninput = () => { clearTimeout(soon); soon = setTimeout(both, 120); };
  for (const id of ["experiment", "label", "trust", "slo"]) el(id).onchange = both;
  for (const id of ["figure", "colour"]) el(id).onchange = chart;
  el("more").onclick = () => { shown += 100; table(); };
  el("compare").onclick = () => {
    const [a, b] = chosen.map(at => encodeURIComponent(data.runs[at].name));
    if (data.live) location.href = `compare?base=${a}&candidate=${b}`;
    else navigator.clipboard?.writeText(el("hint").textContent);
  };
  if (!data.live) el("compare").textContent = "Copy the compare command";
  both();
  let width = el("plot").clientWidth;
  new ResizeObserver(() => { if (Math.abs(el("plot").clientWidth - width) > 2) { width = el("plot").clientWidth; chart(); } }).observe(el("plot"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", chart);
  document.documentElement.dataset.ready = data.runs.length;
})();
