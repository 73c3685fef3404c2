"""docs/api lists what the docstrings say now, and `make docs` makes a site of it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

import llamapar as lp
from browser.lab import chromium, find_chromium
from browser.test_site import served

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "api"
LISTED = {
    name: about
    for page in FOLDER.glob("*.md")
    for name, about in re.findall(r"^\| \[`lp\.([\w.]+)`\]\(.*?\) \| (.*) \|$", page.read_text("utf-8"), re.M)
}
TOOL = runpy.run_path(str(PROJECT / "tools" / "api.py"), run_name="api")
WORDS = runpy.run_path(str(PROJECT / "tools" / "search_words.py"))["WORDS"]
FIRST = {word: page for page, words in WORDS.items() for word in words}
"""What is typed into the search of the site → the page that stands first."""


def test_a_page_has_the_words_by_which_it_is_found():
    assert {*FIRST} >= {"OOM", "FSDP", "hang", "half a head", "MoE"}
    for word, page in FIRST.items():
        assert word.lower() in (PROJECT / page).read_text("utf-8").lower(), word


def test_the_pages_are_those_that_the_tool_writes():
    """`make docs` writes them anew."""
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")} == TOOL["written"]()


def test_every_public_name_is_listed_with_what_it_is():
    names = {name for name in lp.__all__ if name not in ("checkpoint", "course", "programs")}
    inner = {f"checkpoint.{name}" for name in ("inspect", "shard", "gather", "reshard", "verify")}
    assert names | inner <= set(LISTED)
    assert [name for name, about in LISTED.items() if not about] == []


def test_the_site_has_every_page_of_the_reference():
    nav = re.findall(r"- docs/api/(.*)$", (PROJECT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert nav == sorted(path.name for path in FOLDER.glob("*.md"))


@pytest.mark.soak
def test_make_docs_makes_a_site_that_asks_no_other_host():
    """`--strict` refuses a link, a heading and a name of the reference that are not there."""
    if find_chromium() is None:
        pytest.skip("no Chromium")
    for name in ("mkdocs", "mike"):
        pytest.importorskip(name, reason=f"no {name} here: make docs installs it")
    command = ["make", "docs", f"PY={sys.executable}", "-o", ".venv/.docs-installed"]
    own = os.environ | {"PYTHONWARNINGS": ""}
    done = subprocess.run(
        command, cwd=PROJECT, env=own, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    versions = json.loads((PROJECT / "build" / "docs" / "versions.json").read_text())
    assert {v["version"]: v["aliases"] for v in versions}[lp.__version__] == ["latest"]
    site = PROJECT / "build" / "docs" / lp.__version__
    found = {row["location"] for row in json.loads((site / "search/search_index.json").read_text())["docs"]}
    assert {"docs/api/rules.html#llamapar.check", "docs/memory.html"} <= found
    assert {f"llamapar.{name}" for name in LISTED} <= {place.partition("#")[2] for place in found}
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\ssrc=\"?(https?:[^\" >]*)", text)
        loaded += re.findall(r"<link\b[^>]*rel=\"?stylesheet[^>]*href=\"?(https?:[^\" >]*)", text)
        assert loaded == [], page
    with served(site) as address, chromium() as browser:
        for word, wanted in FIRST.items():
            page = browser.new_page()
            page.goto(f"{address}index.html?q={word}")
            best, at = page.locator(".md-search-result__link").first, re.compile(Path(wanted).stem)
            expect(best).to_have_attribute("href", at, timeout=60_000)
            page.close()
    graph = (site / "docs/map.html").read_text("utf-8")
    if (site / "mermaid.min.js").is_file():  # npm was there; without our own, the theme would ask a CDN
        assert '<pre class="mermaid">' in graph
        assert '<script src="../mermaid.min.js"></script></head>' in graph
    else:
        assert '<pre class="mermaid">' not in graph
    check = re.sub("<[^>]+>", "", (site / "docs/api/rules.html").read_text("utf-8"))
    (call,) = re.findall(r"^check\((.*?)^\) -&gt; Report$", check, re.MULTILINE | re.DOTALL)
    assert "kv_replication: bool = False" in call  # as Shift-Tab shows it; the source has `**known`
    assert "**" not in call
