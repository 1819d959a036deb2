// Draws the charts of a Plimsoll report with uPlot from the specs in #charts (see html/chart.rs for their shape).
// The page is complete without it: every figure is in a table as well.
"use strict";
(() => {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = v => {
    if (v == null) return "–";
    const a = Math.abs(v);
    if (a === 0) return "0";
    if (a >= 1000) return Math.round(v).toLocaleString("en-US").replaceAll(",", "\u202f");
    return String(Number(v.toPrecision(3)));
  };
  const alpha = (color, a) => {
    const n = parseInt(color.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${a})`;
  };
  // Ticks at 1 to 9 of each decade: uPlot counts its own from the end of the scale, so that none is a round number there.
  const logSplits = (u, axis, min, max) => {
    const splits = [];
    for (let decade = Math.pow(10, Math.floor(Math.log10(min))); decade <= max; decade *= 10)
      for (let lead = 1; lead < 10; lead++) if (lead * decade >= min && lead * decade <= max) splits.push(lead * decade);
    return splits;
  };
  // Decades are labelled, and 2 and 5 of each where there is room: log axes of uPlot label every tick otherwise.
  const logLabels = (u, splits) => {
    const few = splits.length < 24;
    return splits.map(v => {
      const lead = v / Math.pow(10, Math.floor(Math.log10(v) + 1e-9));
      const keep = Math.abs(lead - 1) < 1e-6 || (few && (Math.abs(lead - 2) < 1e-6 || Math.abs(lead - 5) < 1e-6));
      return keep ? digits(v) : "";
    });
  };

  function shades(spec) {
    return u => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const s of spec.shades) {
        const from = u.valToPos(s.from ?? u.scales.x.min, "x", true), to = u.valToPos(s.to ?? u.scales.x.max, "x", true);
        ctx.fillStyle = s.kind === "borrowed" ? css("--borrowed") : alpha(css(s.color), .13);
        ctx.fillRect(from, bbox.top, to - from, bbox.height);
      }
      ctx.restore();
    };
  }

  // Ceilings: a line across, named at its left end.
  function ceilings(spec) {
    return u => {
      const { ctx, bbox } = u, dpr = devicePixelRatio || 1;
      ctx.save();
      ctx.font = `${11 * dpr}px system-ui, sans-serif`;
      ctx.strokeStyle = ctx.fillStyle = css("--ink");
      ctx.lineWidth = 1.5 * dpr;
      ctx.setLineDash([2 * dpr, 3 * dpr]);
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      for (const c of spec.ceilings ?? []) {
        const y = Math.round(u.valToPos(c.y, "y", true));
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.fillText(c.label, bbox.left + 5 * dpr, y - 4 * dpr);
      }
      ctx.restore();
    };
  }

  // What is drawn without a line of its own: shades, intervals, ceilings.
  function keys(box, spec) {
    const all = spec.shades.map(s => [s.label, s.kind === "borrowed" ? css("--borrowed") : alpha(css(s.color), .3)]);
    if (spec.series.some(s => s.low)) all.push(["95 % interval", alpha(css("--s0"), .3)]);
    const list = document.createElement("p");
    list.className = "keys small";
    for (const [label, color] of all) {
      const swatch = document.createElement("i"), item = document.createElement("span");
      swatch.style.background = color;
      item.append(swatch, label);
      list.append(item);
    }
    if ((spec.ceilings ?? []).length) list.append(Object.assign(document.createElement("span"), { textContent: "··· ceiling" }));
    if (list.childNodes.length) box.append(list);
  }

  function marks(spec) {
    return u => {
      const { ctx, bbox } = u, dpr = devicePixelRatio || 1;
      ctx.save();
      ctx.font = `${11 * dpr}px system-ui, sans-serif`;
      spec.marks.forEach((m, i) => {
        if (m.x < u.scales.x.min || m.x > u.scales.x.max) return;
        const x = Math.round(u.valToPos(m.x, "x", true));
        ctx.strokeStyle = ctx.fillStyle = css(m.color);
        ctx.lineWidth = 1.5 * dpr;
        ctx.setLineDash([5 * dpr, 4 * dpr]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const left = x > bbox.left + bbox.width * .7;
        ctx.textAlign = left ? "right" : "left";
        const y = bbox.top + (13 + 15 * i) * dpr, at = x + (left ? -5 : 5) * dpr, wide = ctx.measureText(m.label).width;
        ctx.fillStyle = css("--card");
        ctx.fillRect(left ? at - wide - 2 * dpr : at - 2 * dpr, y - 10 * dpr, wide + 4 * dpr, 13 * dpr);
        ctx.fillStyle = css(m.color);
        ctx.fillText(m.label, at, y);
      });
      ctx.restore();
    };
  }

  // Names of points, each where no earlier name is.
  function names(spec) {
    return u => {
      const { ctx, bbox } = u, dpr = devicePixelRatio || 1, taken = [];
      ctx.save();
      ctx.font = `${11 * dpr}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      for (const s of spec.series) (s.labels ?? []).forEach((label, i) => {
        const wide = ctx.measureText(label).width, high = 13 * dpr;
        const at = u.valToPos(s.x[i], "x", true), x = at + 6 * dpr + wide > bbox.left + bbox.width ? at - 6 * dpr - wide : at + 6 * dpr;
        const y = Math.max(u.valToPos(s.y[i], "y", true) - 4 * dpr, bbox.top + high);
        if (taken.some(t => x < t[0] + t[2] && t[0] < x + wide && Math.abs(y - t[1]) < high)) return;
        taken.push([x, y, wide]);
        ctx.fillStyle = css(s.color);
        ctx.fillText(label, x, y);
      });
      ctx.restore();
    };
  }

  function draw(box, spec) {
    // One shared x column: series are aligned on the sorted union of their x values, missing ones are gaps.
    const xs = [...new Set(spec.series.flatMap(s => s.x))].sort((a, b) => a - b);
    const at = new Map(xs.map((x, i) => [x, i]));
    const column = (s, values) => {
      const out = new Array(xs.length).fill(null);
      s.x.forEach((x, i) => { out[at.get(x)] = values[i]; });
      return out;
    };
    const data = [xs], series = [{ label: spec.x.label, value: (u, v) => digits(v) }], bands = [];
    const unit = spec.y.unit ? " " + spec.y.unit : "";
    for (const s of spec.series) {
      const color = css(s.color), i = data.length;
      const points = { show: s.points !== false && s.x.length < 200, size: 6, stroke: color, fill: color };
      const paths = s.shape === "bars" ? uPlot.paths.bars({ size: [.9, 60] }) : s.shape === "steps" || s.shape === "frontier" ? uPlot.paths.stepped({ align: s.shape === "steps" ? 1 : -1 }) : undefined;
      data.push(column(s, s.y));
      series.push({
        label: s.label, stroke: color, width: s.line === false ? 0 : 2, points: s.shape === "bars" ? { show: false } : points, paths,
        fill: s.shape === "bars" ? alpha(color, .35) : undefined, dash: s.dash ? [6, 4] : undefined, spanGaps: true,
        value: (u, v) => v == null ? "–" : digits(v) + unit,
      });
      if (s.low) {
        // An upper bound that is infinite is drawn to the top of the plot.
        const top = 1e3 * Math.max(...spec.series.flatMap(t => t.y.filter(v => v != null)));
        data.push(column(s, s.high.map(v => v ?? top)), column(s, s.low)); // null here = no upper bound
        for (const _ of [0, 1]) series.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, class: "band" });
        bands.push({ series: [i + 1, i + 2], fill: alpha(color, .16) });
      }
    }
    const values = spec.series.flatMap(s => s.y.filter(v => v != null && (!spec.y.log || v > 0))).concat((spec.ceilings ?? []).map(c => c.y));
    const span = [Math.min(...values), Math.max(...values)];
    const grid = { stroke: css("--line"), width: 1 }, axis = { stroke: css("--soft"), grid, ticks: grid };
    const size = () => ({ width: Math.max(240, box.clientWidth), height: Math.round(Math.min(spec.height || 340, Math.max(230, box.clientWidth * .6))) });
    const plot = new uPlot({
      ...size(), bands, series,
      scales: {
        x: { time: false, distr: spec.x.log ? 3 : 1, range: spec.x.range ? () => spec.x.range : undefined },
        y: spec.y.log
          ? { distr: 3, range: () => [Math.pow(10, Math.floor(Math.log10(span[0] * .8) * 4) / 4), Math.pow(10, Math.ceil(Math.log10(span[1] * 1.25) * 4) / 4)] }
          : { range: (u, lo, hi) => [Math.min(0, span[0]), Math.max(span[1] * 1.12, 1e-9)] },
      },
      axes: [
        { ...axis, label: spec.x.label, labelSize: 22, size: 36, splits: spec.x.log ? logSplits : undefined, values: spec.x.log ? logLabels : (u, s) => s.map(digits) },
        { ...axis, label: spec.y.label + (spec.y.unit ? ` (${spec.y.unit})` : ""), labelSize: 20, size: 56, splits: spec.y.log ? logSplits : undefined, values: spec.y.log ? logLabels : (u, s) => s.map(digits) },
      ],
      cursor: { drag: { x: true, y: false }, sync: spec.sync ? { key: spec.sync } : undefined },
      hooks: { drawClear: [shades(spec)], draw: [ceilings(spec), marks(spec), names(spec)] },
    }, data, box);
    keys(box, spec);
    plot.root.querySelectorAll(".u-legend .u-series.band").forEach(row => { row.style.display = "none"; });
    plot.root.querySelectorAll(".u-legend .u-series").forEach(row => { if (!row.querySelector(".u-label").textContent.trim()) row.style.display = "none"; });
    let width = box.clientWidth;
    new ResizeObserver(() => { if (Math.abs(box.clientWidth - width) > 2) { width = box.clientWidth; plot.setSize(size()); } }).observe(box);
    return plot;
  }

  const specs = JSON.parse(document.getElementById("charts").textContent);
  let plots = [];
  const all = () => {
    plots.forEach(p => p.destroy());
    document.querySelectorAll(".keys").forEach(list => list.remove());
    plots = Object.entries(specs).map(([id, spec]) => draw(document.getElementById(id), spec));
    document.documentElement.dataset.plots = plots.length;
  };
  all();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
