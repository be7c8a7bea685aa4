"""Figures as bytes of SVG and PNG, and as SVG that stands in a page. The same figure gives the same bytes."""

from __future__ import annotations

import io
import re

import matplotlib
from markupsafe import Markup

from analysis.document import Picture

PNG_DPI = 150

# Colours of figures by the variables of report.css, which has a light, a dark and a printed value for each.
VARIABLES = {
    "#000000": "currentColor",
    "#4d4d4d": "currentColor",
    "#e0e0e0": "var(--c-grid)",
    "#595959": "var(--c-local)",
    "#0072b2": "var(--c-ddp)",
    "#d55e00": "var(--c-horovod)",
    "#009e73": "var(--c-band)",
    "#cc79a7": "var(--c-third)",
}


def draw(picture: Picture, kind: str, transparent: bool = False) -> bytes:
    """The bytes of a file; kind: svg or png."""
    buffer = io.BytesIO()
    # Without a date, and with ids that do not vary, the same records give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": picture.name}):
        metadata = {"Date": None} if kind == "svg" else {}
        picture.figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=metadata, transparent=transparent)
        picture.figure.set_layout_engine("none")  # laid out by the first drawing; that takes as long as drawing
    return buffer.getvalue()


def inline(picture: Picture) -> Markup:
    """An svg element for a page: named, its ids its own, without prologue, metadata, comments and style (report.css).

    Text of records is in it as outlines only, so that nothing remains that could be markup.
    """
    text = draw(picture, "svg", transparent=True).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{picture.name}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), text)
    # Figures have a title for eyes; the rest of the alternative is the caption.
    label = Markup('<svg role="img" aria-label="{}"').format(picture.alternative)
    return Markup(text.replace("<svg", label, 1))
