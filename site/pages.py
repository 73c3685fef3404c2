"""What every page of the site has: its head, the ways to the others, and what it may ask for."""

from __future__ import annotations

import html

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src blob:; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'"
)
"""plotly.js writes styles; a worker from a blob has this policy too, which one from a file has not."""

STATIC = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'"
)
LATER = '<p id="python" class="said later" role="status">{}</p>'
NO_SCRIPT = (
    "Nothing moves yet. This page needs JavaScript and a web server: browsers do not start Python in a page "
    "that was opened as a file. Run <code>python -m http.server</code> in its folder. "
)
OR_READ = 'You can read <a href="index.html#course">the course</a> without either.'

TITLES = {
    "explorer": (
        "The Explorer",
        "Move a control to see whether a layout is legal, whether it fits in memory, how fast it is, and "
        "what its GPUs send each other.",
    ),
    "clinic": (
        "The clinic",
        "What you paste stays in this page: its Python runs in your browser, and it contacts no other host.",
    ),
    "watch": (
        "Watch the ranks",
        "Edit a line or break something, and every rank runs the forward pass again in your browser. The "
        "backward pass and the programs llama and step are recordings of PyTorch.",
    ),
    "live": ("A live picture", "Point at a value, step, or press ▶. The page's address keeps what you set."),
}
ARCHIVES = {name: "llamapar watch" if name == "watch" else "llamapar" for name in TITLES}
"""What the Python of a panel's page is made of."""


def panel_page(name: str) -> str:
    title, says = TITLES[name]
    later = LATER.format(NO_SCRIPT + OR_READ)
    main = f'<h1>{title}</h1><p class="said">{says}</p>{later}<div id="panel"></div>'
    head = f'<link rel="stylesheet" href="{name}.css"><link rel="modulepreload" href="{name}.mjs">'
    head += '<link rel="modulepreload" href="models.mjs">'
    if name != "watch":  # whose tiles are its own
        head += '<link rel="preload" as="script" href="plotly.min.js">'
    head += '<script type="module" src="page.mjs"></script>'
    if name == "clinic":
        head += '<link rel="stylesheet" href="explorer.css">'  # which a fix opens
    return page(title, main, POLICY, head, f' data-panel="{name}" data-archives="{ARCHIVES[name]}"')


def page(title: str, main: str, policy: str, head: str = "", body: str = "", root: str = "") -> str:
    """A whole page. root: the way back to the site's own folder."""
    named = ("index llamapar", "explorer Explorer", "watch Watch", "clinic Clinic", "index Course")
    nav = " ".join(
        f'<a href="{root}{file}.html{"#course" * (text == "Course")}">{text}</a>'
        for file, text in map(str.split, named)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)} · llamapar</title>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="{root}page.css">{head}</head>\n'
        f'<body{body}><header><nav aria-label="site">{nav}</nav></header>\n<main>{main}</main>\n'
        f'<footer class="said"><a href="{root}notices.txt">Licences</a></footer></body></html>\n'
    )
