// Draws the figures whose pictures carry their data (report/picture.py), as they come into
// view; without JavaScript, and in print, the pictures stay. Vega is one local script, loaded once.
(() => {
  const here = document.currentScript.src;
  let bundle;
  const load = () =>
    (bundle ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const src = new URL("vega.js", here).href;
      Object.assign(script, { src, onload: resolve, onerror: reject });
      document.head.append(script);
    }));

  // A line chart fills the width; what has no height of its own is a square, panels side by side.
  const fitted = (spec, width) => {
    const panel = spec.spec;
    if (panel) {
      spec.columns = width > 520 ? 2 : 1;
      const beside = panel.encoding.x.axis === null ? 24 : 110;
      panel.width = panel.height = Math.min(300, Math.floor(width / spec.columns) - beside);
    } else {
      spec.width = spec.height ? width : Math.min(width, 460);
      spec.height ??= spec.width;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    return spec;
  };

  const draw = async (figure) => {
    const width = figure.clientWidth;
    const dark = document.documentElement.dataset.theme === "dark";
    const state = `${width} ${dark}`;
    if (!width || figure.dataset.drawn === state) return;
    figure.dataset.drawn = state;
    await load();
    const text = figure.querySelector("script").textContent;
    const spec = fitted(JSON.parse(text), width);
    const [image, place] = [figure.querySelector("img"), figure.querySelector(".live")];
    const config = {
      background: "transparent",
      font: "inherit",
      axis: { gridColor: "#8884" },
      text: { color: dark ? "#ddd" : "#333" },
      rect: { color: dark ? "#56b4e9" : "#0173b2" },
      legend: { orient: "bottom", columns: Math.max(1, Math.floor(width / 210)), labelLimit: 190 },
    };
    figure.view?.finalize();
    figure.view = (await vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, theme: dark ? "dark" : undefined,
      tooltip: { theme: dark ? "dark" : "light" }, bind: figure.querySelector(".choose"), config,
    })).view;
    figure.querySelector("a").href = `data:text/csv,${encodeURIComponent(spec.data.values)}`;
    figure.classList.add("drawn");
    image.setAttribute("aria-hidden", "true");
  };

  const seen = new Set();
  const width = new ResizeObserver((all) =>
    all.forEach(({ target }) => seen.has(target) && draw(target)));
  const view = new IntersectionObserver((all) =>
    all.filter((one) => one.isIntersecting).forEach(({ target }) => seen.add(target) && draw(target)),
    { rootMargin: "300px" });
  for (const figure of document.querySelectorAll("figure.interactive"))
    [width, view].forEach((observer) => observer.observe(figure));
  new MutationObserver(() => seen.forEach(draw))
    .observe(document.documentElement, { attributeFilter: ["data-theme"] });
})();
