"""How a page looks: on a desk, on a phone, in the dark and on paper."""

_MOST_TABS = 12
_SHOWN = ",\n".join(
    f".tabs > input:nth-of-type({i}):checked ~ div:nth-of-type({i})"
    for i in range(1, _MOST_TABS + 1)
)

_RULES = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2330; --faint: #596070; --line: #d9dde5; --soft: #f4f6f9;
  --link: #0b57a4; --good: #0a6b50; --warn: #8a5300; --bad: #a82a12;
  --good-soft: #e9f6f1; --warn-soft: #fdf3e0; --bad-soft: #fdeee9;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171d; --ink: #e7eaf0; --faint: #a6aebc; --line: #343b48; --soft: #1d222b;
    --link: #8cc1ff; --good: #63d3ac; --warn: #f0b557; --bad: #ff9c82;
    --good-soft: #12291f; --warn-soft: #2c2312; --bad-soft: #331a14;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; padding: 0 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header, nav, main { max-width: 62rem; margin: 0 auto; }
header { padding-top: 2.5rem; }
h1, h2, h3, h4 { line-height: 1.2; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.6rem, 4.5vw, 2.3rem); margin: 0; letter-spacing: -0.015em; }
h2 {
  font-size: 1.5rem;
  margin: 3rem 0 1rem;
  padding-top: 1.2rem;
  border-top: 1px solid var(--line);
}
h3 { font-size: 1.15rem; margin: 2.2rem 0 0.7rem; }
h4 { font-size: 1rem; margin: 1.8rem 0 0.6rem; }
p { margin: 0.7rem 0; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--link); }
.subtitle { color: var(--faint); margin-top: 0.5rem; }
.faint { color: var(--faint); font-size: 0.9rem; }
.skip { position: absolute; left: -99rem; }
.skip:focus {
  left: 1rem;
  top: 0.5rem;
  padding: 0.4rem 0.8rem;
  background: var(--soft);
  z-index: 1;
}
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
nav ul {
  list-style: none; display: flex; flex-wrap: wrap; gap: 0.35rem 1.1rem; margin: 1.3rem 0 0;
  padding: 0.7rem 0 0; border-top: 1px solid var(--line); font-size: 0.92rem;
}
nav a { text-decoration: none; overflow-wrap: anywhere; }
nav a:hover { text-decoration: underline; }
.facts {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(8.6rem, 1fr));
  gap: 0.9rem;
  margin: 1.1rem 0;
}
.facts div { border-left: 2px solid var(--line); padding-left: 0.7rem; }
.facts dt { color: var(--faint); font-size: 0.82rem; }
.facts dd {
  margin: 0;
  font-size: 1.2rem;
  font-weight: 600;
  font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere;
}
.notice {
  border: 1px solid;
  border-left-width: 6px;
  border-radius: 8px;
  padding: 0.9rem 1.25rem;
  margin: 1rem 0;
}
.notice.good { border-color: var(--good); background: var(--good-soft); }
.notice.warn { border-color: var(--warn); background: var(--warn-soft); }
.notice.bad { border-color: var(--bad); background: var(--bad-soft); }
.notice .title { font-size: 1.3rem; font-weight: 700; margin-top: 0; }
.notice .mark { display: inline-block; min-width: 1.5rem; }
.good .mark { color: var(--good); }
.warn .mark { color: var(--warn); }
.bad .mark { color: var(--bad); }
.scroll, .card { overflow-x: auto; }
table {
  border-collapse: collapse;
  font-size: 0.9rem;
  font-variant-numeric: tabular-nums;
  min-width: 60%;
}
caption { text-align: left; color: var(--faint); padding: 0.4rem 0; max-width: 46rem; }
th, td {
  text-align: left;
  padding: 0.32rem 0.8rem 0.32rem 0;
  border-bottom: 1px solid var(--line);
  vertical-align: top;
}
thead th {
  border-bottom: 2px solid var(--line); vertical-align: bottom;
  max-width: 10rem; font-weight: 600; line-height: 1.3;
}
tbody th { font-weight: 500; }
.number { text-align: right; }
.short { white-space: nowrap; }
figure { margin: 1.2rem 0 2rem; }
.card { background: #ffffff; border-radius: 8px; }
.card img { display: block; width: min(100%, var(--width)); height: auto; }
@media (max-width: 44rem) {
  .card img { width: max(100%, min(var(--width), 42rem)); max-width: none; }
}
@media (prefers-color-scheme: dark) { .card { padding: 0.6rem; } }
.slider { max-width: 40rem; }
.stage { position: relative; border-radius: 8px; overflow: hidden; }
.stage img { display: block; width: 100%; height: auto; image-rendering: pixelated; }
.over { position: absolute; inset: 0; clip-path: inset(0 calc(100% - var(--cut, 50%)) 0 0); }
.stage::after {
  content: ""; position: absolute; top: 0; bottom: 0; left: var(--cut, 50%); width: 2px;
  background: #ffffff; box-shadow: 0 0 2px #000000;
}
.slider label { display: flex; gap: 0.8rem; align-items: center; margin-top: 0.5rem; }
.slider input { flex: 1; min-width: 6rem; accent-color: var(--link); }
.slider span { font-size: 0.9rem; }
.tabs { border: 0; margin: 1rem 0; padding: 0; }
.tabs legend { font-weight: 600; padding: 0; margin-bottom: 0.5rem; }
.tabs > input { position: absolute; opacity: 0; }
.tabs > label {
  display: inline-block; padding: 0.25rem 0.8rem; margin: 0 0.4rem 0.4rem 0; cursor: pointer;
  border: 1px solid var(--line); border-radius: 999px; font-size: 0.92rem;
}
.tabs > input:checked + label { background: var(--ink); color: var(--paper); }
.tabs > input:focus-visible + label { outline: 2px solid var(--link); outline-offset: 2px; }
.tabs > div { display: none; }
.tabs > div > .title { display: none; font-weight: 600; }
TABS { display: block; }
figcaption { color: var(--faint); font-size: 0.9rem; margin-top: 0.5rem; max-width: 46rem; }
code { font-family: var(--mono); font-size: 0.88em; overflow-wrap: anywhere; }
.command p { margin-bottom: 0.3rem; }
pre {
  margin: 0.3rem 0 0.7rem; padding: 0.6rem 0.9rem; overflow-x: auto;
  background: var(--soft); border: 1px solid var(--line); border-radius: 6px;
}
pre code { user-select: all; overflow-wrap: normal; }
figcaption code { user-select: all; display: block; margin-top: 0.2rem; }
details { border-bottom: 1px solid var(--line); padding: 0.55rem 0; }
summary { cursor: pointer; font-weight: 600; }
@media print {
  @page { margin: 16mm 14mm; }
  :root {
    color-scheme: light; --paper: #fff; --ink: #000; --faint: #444; --line: #bbb; --soft: #fff;
    --good: #000; --warn: #000; --bad: #000; --link: #000;
    --good-soft: #fff; --warn-soft: #fff; --bad-soft: #fff;
  }
  body { font-size: 10pt; padding: 0; }
  nav, .skip, .slider input, .tabs > label { display: none; }
  .tabs > div, .tabs > div > .title { display: block; }
  .stage { display: flex; flex-direction: row-reverse; gap: 4mm; }
  .stage > * { flex: 1; min-width: 0; }
  .stage::after { display: none; }
  .over { position: static; clip-path: none; }
  .slider label { justify-content: space-between; }
  h2, h3, h4, .facts, .tabs > div > .title { break-after: avoid; }
  figure, .notice, tr { break-inside: avoid; }
  .scroll, .card, pre { overflow: visible; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""

CSS = _RULES.replace("TABS", _SHOWN)
