"""The files of the page: no other site is needed, nothing is inline, and all of them are served."""

from __future__ import annotations

import re

import pytest

from headrace.ui.static_files import read_static_files

FILES = read_static_files()


def test_the_page_consists_of_these_files() -> None:
    assert {"index.html", "login.html", "page.css", "page.js", "theme.js", "icon.svg"} <= FILES.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = FILES[name].body.decode()
    addresses = re.findall(r"""https?://[^"'\s)]+|(?<=["'(])//[^"'\s)]+""", text)
    assert [it for it in addresses if it != "http://www.w3.org/2000/svg"] == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".html")])
def test_no_script_or_style_is_inline(name: str) -> None:
    text = FILES[name].body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text) == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_script_makes_markup_or_code_from_text(name: str) -> None:
    text = FILES[name].body.decode()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".html"))])
def test_every_file_that_is_used_exists(name: str) -> None:
    text = FILES[name].body.decode()
    used = re.findall(r"""from "\./([\w.]+)"|(?:src|href)="/static/([\w.]+)\"""", text)
    assert {first or second for first, second in used} <= FILES.keys()


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.endswith(".js") and name not in ("dom.js", "login.js")]
)
def test_every_text_is_set_where_invisible_characters_are_shown(name: str) -> None:
    """`dom.js` shows those that hide text or change its direction; `login.js` has only texts of its own."""
    text = FILES[name].body.decode()
    assert re.findall(r"textContent\s*=[^=]|innerText|createTextNode|document\.title = (?!visible\()", text) == []
