// What can be seen of a page's accessibility by a program, each rule by its WCAG 2.2 criterion. Runs in the page after its scripts; what it
// finds stands in data-accessibility of the document, "" where there is nothing.
addEventListener("load", () => setTimeout(() => {
  const found = [], say = (rule, at) => found.push(`${rule}: ${at.outerHTML ? at.outerHTML.slice(0, 90) : at}`);
  const all = query => [...document.querySelectorAll(query)];
  const name = e => (e.getAttribute("aria-label") || e.textContent || e.getAttribute("title") || "").trim();
  if (!document.documentElement.lang) say("3.1.1 language of the page", "html");
  if (!document.title.trim()) say("2.4.2 page titled", "title");
  if (all("main").length !== 1) say("1.3.1 one main landmark", `${all("main").length} of them`);
  const headings = all("h1,h2,h3,h4,h5,h6").map(e => [Number(e.tagName[1]), e]);
  if (headings.filter(([level]) => level === 1).length !== 1) say("1.3.1 one h1", "headings");
  headings.forEach(([level, e], i) => { if (i && level > headings[i - 1][0] + 1) say("1.3.1 headings skip no level", e); });
  for (const e of headings.map(h => h[1])) if (!name(e)) say("2.4.6 headings have words", e);
  for (const e of all("svg,canvas,img")) {
    const box = e.closest("[role=img]") || (e.tagName === "IMG" ? e : null);
    const label = box && (box.getAttribute("aria-label") || box.getAttribute("alt"));
    if (!label && !e.closest("[aria-hidden=true]")) say("1.1.1 pictures have a text", e);
  }
  for (const e of all("a[href],button,summary")) if (!name(e)) say("4.1.2 controls have a name", e);
  const legend = e => e.closest(".uplot");
  for (const e of all("th")) if (!legend(e)) {
    if (!name(e)) say("1.3.1 a header has words", e);
    if (!e.scope) say("1.3.1 a header says of what", e);
  }
  const ids = all("[id]").map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => say("4.1.1 ids are unique", id));
  for (const e of all("*")) {
    const style = getComputedStyle(e);
    if (e.scrollWidth > e.clientWidth + 1 && /auto|scroll/.test(style.overflowX) && e.clientWidth && e.tabIndex < 0 && e.tagName !== "HTML")
      say("2.1.1 what scrolls takes the keyboard", e);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) say("1.4.10 the page does not scroll sideways", `${document.documentElement.scrollWidth} > ${innerWidth}`);
  // Contrast of every text against what is painted behind it.
  const rgb = text => { const m = text.match(/rgba?\(([^)]+)\)/); return m ? m[1].split(/[ ,/]+/).map(Number) : [0, 0, 0, 0]; };
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
  const paper = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgb(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer.length === 3 ? [...layer, 1] : layer, under), [255, 255, 255]);
  };
  const light = color => color.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  for (const e of all("main *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.closest("svg") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), under = paper(e), ink = over(rgb(style.color), under);
    const [a, b] = [light(ink), light(under)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    if (ratio < (large ? 3 : 4.5)) say(`1.4.3 contrast ${ratio.toFixed(2)}`, e);
  }
  document.documentElement.dataset.accessibility = [...new Set(found)].slice(0, 20).join("\n");
}, 300));
