"""How text from tables and notebooks becomes part of a page: as words, and as nothing that a browser would run."""

import base64
import hashlib
import re

_TAGS = frozenset("a blockquote br code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr img li ol p pre "
                  "span strong sub summary sup table tbody td th thead tr ul".split())
_VALUES = {"class": re.compile(r"[\w -]*"), "id": re.compile(r"s\d+(-\d+)*"), "alt": re.compile(r".*", re.S),
           "href": re.compile(r"#[\w-]*"), "colspan": re.compile(r"\d+"), "rowspan": re.compile(r"\d+"),
           "src": re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[\w+/=\s]*")}
_UNSEEN = re.compile(r"<(script|style)\b.*?</\1\s*>", re.S | re.I)  # their content is no text
_LINK = re.compile(r"\](?=[(:\[])")


def words(text: str) -> str:
    """Return Markdown without HTML and without links or pictures, which a value in it might have brought; all else stays."""
    return _LINK.sub("&#93;", text.replace("<", "&lt;"))


def clean(html: str) -> str:
    """Return HTML with nothing but text, tables, links within the page, and pictures that are part of it."""
    import bleach

    def allowed(_tag: str, name: str, value: str) -> bool:
        return name in _VALUES and _VALUES[name].fullmatch(value) is not None

    return bleach.clean(_UNSEEN.sub("", html), tags=_TAGS, attributes=allowed, protocols={"data"}, strip=True)


def policy(style: str) -> str:
    """Return the Content-Security-Policy of a page with one style sheet: no script, nothing from elsewhere, own pictures."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
