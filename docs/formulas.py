"""Set the formulas of the pages as MathML while the site is built.

A reader needs no script and no network for it. Where latex2mathml is missing, they stay TeX.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any

_FORMULA = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex marked; MkDocs calls this for each page."""
    return _FORMULA.sub(lambda found: set_formula(html.unescape(found[1]).strip()), content)


def set_formula(tex: str) -> str:
    """Give the HTML of a formula on a line of its own."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        logging.getLogger("mkdocs").info("formulas stay TeX: pip install latex2mathml")
        return f"<pre><code>{html.escape(tex)}</code></pre>"
    return f'<div style="overflow-x: auto">{convert(tex, display="block")}</div>'
