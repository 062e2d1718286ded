(() => {
  "use strict";
  const coarse = matchMedia("(pointer: coarse)");
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: false,
    doubleClick: "reset",
  };

  // The style sheet owns all colours: "var(--name)" under a key such as color, fillcolor or colorscale.
  function coloured(value, key, style) {
    if (Array.isArray(value)) return value.map((item) => coloured(item, key, style));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k, style)]));
    }
    if (typeof value === "string" && /color/i.test(key) && value.startsWith("var(--")) {
      return style.getPropertyValue(value.slice(4, -1)).trim();
    }
    return value;
  }

  function hidden(charts) {
    const off = charts.querySelectorAll('.legend [aria-pressed="false"]');
    return new Set(Array.from(off, (button) => button.dataset.group));
  }

  function draw(element) {
    const spec = JSON.parse(element.nextElementSibling.textContent);
    const { data, layout } = coloured(spec, "", getComputedStyle(document.documentElement));
    const charts = element.closest(".charts");
    const off = hidden(charts);
    const chosen = Array.from(charts.querySelectorAll(".views select"), (select) => Number(select.value));
    for (const trace of data) {
      const elsewhere = trace.meta?.view.some((option, i) => option !== null && option !== chosen[i]);
      if (off.has(trace.legendgroup) || elsewhere) trace.visible = false;
    }
    // On a touch screen a drag must scroll the page, not zoom the chart.
    layout.dragmode = coarse.matches ? false : "zoom";
    return Plotly.react(element, data, layout, config);
  }

  const all = () => document.querySelectorAll(".chart").forEach(draw);

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
      button.closest(".charts").querySelectorAll(".chart").forEach(draw);
    });
  }
  for (const select of document.querySelectorAll(".views select")) {
    select.addEventListener("change", () => select.closest(".charts").querySelectorAll(".chart").forEach(draw));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  coarse.addEventListener("change", all);
  all();
})();
