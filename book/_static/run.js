// Shows recorded runs on the one page for all: run.html#run-ID the run, run.html#run-ID-ID a list
// of several. An ID is a run id or its beginning. What is shown comes in small scripts, one for
// each first digit, as a page that was opened as a file may not fetch data.
(() => {
  const found = { runs: {}, protocols: {}, data: {}, rules: {} };
  window.recorded = (part) => {
    for (const key in part) Object.assign(found[key], part[key]);
  };
  const loading = {};
  const load = (name) =>
    (loading[name] ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: `_static/records/${name}.js`, onload: resolve, onerror: reject });
      document.head.append(script);
    }));

  const make = (tag, given = {}, ...inside) => {
    const drawn = ["svg", "title", "line", "polyline", "text"].includes(tag);
    const space = `http://www.w3.org/${drawn ? "2000/svg" : "1999/xhtml"}`;
    const element = document.createElementNS(space, tag);
    for (const key in given) element.setAttribute(key, given[key]);
    element.append(...inside);
    return element;
  };
  const table = (label, head, rows) => {
    const cells = (row) =>
      row.map((cell, i) => (i ? make("td", {}, cell) : make("th", { scope: "row" }, cell)));
    return make("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label },
      make("table", { class: "table run" },
        make("thead", {}, make("tr", {}, ...head.map((h) => make("th", { scope: "col" }, h)))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))))));
  };
  const flat = (value, name = "") =>
    value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? Object.entries(value).flatMap(([k, v]) => flat(v, name ? `${name}.${k}` : k))
      : [[name, typeof value === "string" ? value : JSON.stringify(value)]];
  const facts = (label, value) =>
    table(label, ["name", "value"], flat(value).map(([k, v]) => [make("code", {}, k), v]));

  const drawn = (curve) => {
    const [width, height, left, low] = [420, 240, 40, 206];
    const last = Math.max(...curve.map(([round]) => round), 1);
    const values = curve.map(([, value]) => value);
    const bottom = Math.floor(Math.min(...values) / 10) * 10;
    const top = Math.max(Math.ceil(Math.max(...values) / 10) * 10, bottom + 10);
    const x = (round) => left + (round / last) * (width - left - 10);
    const y = (value) => low - ((value - bottom) / (top - bottom)) * (low - 12);
    const what = `Mean test accuracy in percent by round: ${values[0]} in round ${curve[0][0]}, ` +
      `${values.at(-1)} in round ${curve.at(-1)[0]}, highest ${Math.max(...values)}.`;
    const level = (value) => [
      make("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), class: "level" }),
      make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`)];
    const points = [...curve, curve.at(-1)].map(([round, value]) => `${x(round)},${y(value)}`);
    return make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": what },
      make("title", {}, what),
      ...[bottom, (bottom + top) / 2, top].flatMap(level),
      make("text", { x: left, y: height - 8 }, "0"),
      make("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "round"),
      make("text", { x: width - 10, y: height - 8, "text-anchor": "end" }, `${last}`),
      make("polyline", { class: "curve", points: points.join(" ") }));
  };

  const download = (name, type, text) =>
    make("a", { href: `data:${type},${encodeURIComponent(text)}`, download: name }, name);
  const explained = (run) => Object.keys(run.scores).map((r) => `${r}: ${found.rules[r]}`).join("; ") + ".";
  const megabytes = (run) => (run.traffic / 1e6).toLocaleString("en", { maximumFractionDigits: 2 });
  const one = (id, run) => {
    const scores = Object.keys(run.scores);
    const domains = Object.keys(run.scores[scores[0]]);
    const rows = domains.map((d) => [d, ...scores.map((r) => run.scores[r][d].toFixed(2))]);
    const whole = { run: id, ...run, protocol: found.protocols[run.protocol], data: found.data[run.data] };
    const csv = ["round,accuracy", ...run.curve.map((pair) => pair.join(","))].join("\n") + "\n";
    const { dataset, scale } = { ...whole.protocol.data, ...whole.protocol };
    const said = run.uses.length
      ? `With the code of commit ${run.environment.commit ?? "unknown"} or, where the last column ` +
        "says so, with this book’s own."
      : "No table uses this run today. Its configuration is below.";
    const commands = run.uses.map(([where, command, same]) =>
      [where, make("code", {}, command), same ? "yes" : "no: changed since"]);
    return [
      make("h1", {}, `Run ${id}`),
      make("p", {}, `${run.method.name} on ${dataset}, scale ${scale}, seed ${run.seed}.`),
      make("h2", {}, "Test accuracy (%)"),
      table("Test accuracy in percent by domain", ["domain", ...scores], rows),
      make("p", {}, `Columns: ${explained(run)}`),
      drawn(run.curve),
      make("p", {}, "Mean over domains by round: ", download(`${id}.csv`, "text/csv", csv),
        "; the whole record: ",
        download(`${id}.json`, "application/json", JSON.stringify(whole, null, 1)), "."),
      make("p", {}, `Traffic of one client, sent and received in all rounds: ${megabytes(run)} MB.`),
      make("h2", {}, "Repeat it"), make("p", {}, said),
      ...(commands.length ? [table("Commands", ["where", "command", "same settings today"], commands)] : []),
      make("h2", {}, "Configuration"),
      facts("Configuration", { seed: run.seed, engine: run.engine, method: run.method, ...whole.protocol }),
      make("h2", {}, "Data, by SHA-256"), facts("Data", whole.data),
      make("h2", {}, "Commit and environment"), facts("Environment", run.environment)];
  };
  const rulesOf = (ids) =>
    Object.keys(found.rules).filter((rule) => ids.some((id) => rule in found.runs[id].scores));
  const several = (ids) => [
    make("h1", {}, "Runs behind one number"),
    make("p", {}, "Each leads to its configuration, curve, data, environment and command."),
    table("Runs", ["run", "seed", "method", ...rulesOf(ids), "MB"],
      ids.map((id) => {
        const run = found.runs[id];
        const means = rulesOf(ids).map((rule) => run.scores[rule]?.avg.toFixed(2) ?? "–");
        return [make("a", { href: `#run-${id}` }, id), `${run.seed}`, run.method.name, ...means, megabytes(run)];
      })),
    make("p", {}, `Means over domains in percent, under each score rule; MB: one client’s traffic. ${explained(found.runs[ids[0]])}`)];

  const show = async () => {
    const asked = location.hash.match(/^#run-([0-9a-f-]+)$/)?.[1].split("-");
    if (!asked) return;
    let shown;
    try {
      await Promise.all(["shared", ...asked.map((id) => id[0])].map(load));
      const ids = asked.map((id) => Object.keys(found.runs).find((run) => run.startsWith(id)));
      shown = ids.length > 1 ? several(ids) : one(ids[0], found.runs[ids[0]]);
    } catch {
      shown = [make("h1", {}, "Not recorded"), make("p", {}, `No run ${asked.join(", ")} is in this book.`)];
    }
    document.getElementById("run").replaceChildren(...shown);
    document.title = shown[0].textContent;
    scrollTo(0, 0);
  };
  addEventListener("hashchange", show);
  show();
})();
