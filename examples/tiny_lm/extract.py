"""Turns the files of an unpacked Debian package into English prose paragraphs.

Called by corpus.py. Each reader takes one file and yields (document name, list of raw paragraphs);
`prose` then cleans one paragraph or rejects it. The readers are deliberately shallow (regular
expressions, no parser): a paragraph they mangle fails the prose test and is dropped, which costs
less than a faithful parser for eight markup languages.
"""

import gzip
import html
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

Document = tuple[str, list[str]]

STOPWORDS = frozenset(
    "the of and to in a is that it for as was with be by on not he his but at are this have "
    "from or had an they which one you were all her she there would their we him been has "
    "when who will no more if out so what up its about into than them can only other time "
    "new some could these two may then do first any my now such like our over me even most "
    "made after also did many your must should i thou thy thee shall unto ye".split()
)

_DROP = re.compile(
    r"<!--.*?-->|<(script|style|pre|head|code-block|programlisting|screen|synopsis|table|nav|svg|"
    r"math|code)\b.*?</\1\s*>",
    re.S | re.I,
)
# Inline code is replaced by its text before blocks are dropped, so that a sentence keeps its nouns.
_INLINE_CODE = re.compile(r"<code\b[^>]*>([^<\n]{1,60})</code>", re.I)
_BLOCK = re.compile(
    r"</?(p|div|h[1-6]|li|ul|ol|dl|dt|dd|blockquote|section|article|title|para|note|item|info|page|"
    r"listitem|term|hr|body|html|td|tr|br\s*/?><br)\b[^>]*>",
    re.I,
)
_TAG = re.compile(r"<[^>]{0,400}>")
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[a-z']+")
_CODEISH = re.compile(r"[{}\\<>=|_$#~^@*\[\]]|::|\(\)|--")
_PILCROW = str.maketrans({"¶": "", "\u00ad": "", "\u200b": "", "\u2019": "'", "\u2018": "'",
                          "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ",
                          "\u2026": "...", "\u00a0": " "})


def prose(raw: str, min_chars: int = 60) -> str | None:
    """One cleaned paragraph, or None where `raw` is not a sentence of English.

    Kept: at least min_chars characters and eight words, 70 % letters, 25 % of the words among the
    most frequent English ones; at most 1.5 % code-like characters and 2 % outside ASCII.
    """
    text = _SPACE.sub(" ", raw.translate(_PILCROW)).strip()
    length = len(text)
    if length < min_chars or text[-1] not in ".!?:;\"')":
        return None
    if not text[0].isalnum() and text[0] not in "\"'(":
        return None
    words = _WORD.findall(text.lower())
    if len(words) < 8 or sum(map(len, words)) < 0.70 * length:
        return None
    if sum(word in STOPWORDS for word in words) < 0.25 * len(words):
        return None
    if len(_CODEISH.findall(text)) > 0.015 * length:
        return None
    if sum(c > "\x7f" for c in text) > 0.02 * length:
        return None
    return text


def read_text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_markup(path: Path) -> Iterator[Document]:
    """HTML, Mallard and DocBook: blocks of text between block-level tags."""
    text = _INLINE_CODE.sub(r"\1", read_text(path))
    text = _BLOCK.sub("\x00", _DROP.sub("\x00", text))
    text = html.unescape(_TAG.sub("", text))
    yield path.name, text.split("\x00")


def read_plain(path: Path) -> Iterator[Document]:
    """Plain text and Markdown: paragraphs between blank lines; indented blocks are code."""
    blocks = re.split(r"\n\s*\n", read_text(path))
    yield path.name, [b for b in blocks if not b.startswith(("    ", "\t", "```"))]


_TROFF_FONT = re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,]|\\\*\[[^\]]*\]")
_TROFF_CHARS = {r"\-": "-", r"\(aq": "'", r"\(dq": '"', r"\(lq": '"', r"\(rq": '"', r"\(em": " - ",
                r"\(en": "-", r"\(oq": "'", r"\(cq": "'", r"\e": "\\", r"\ ": " ", r"\~": " "}
_TROFF_BREAK = re.compile(r"\.(SH|SS|PP|P|LP|TP|IP|Pp|Sh|Ss|It|Bl|El|RS|RE|HP|TH|sp|br|TQ|Bd|Ed)\b")
_MDOC_INLINE = re.compile(r"(Nm|Fl|Ar|Pa|Xr|Em|Sy|Dv|Va|Vt|Fa|Fn|Cm|Ev|Er|Li|Ql|Dq|Sq|Pq|Ns|Op|Bx|"
                          r"Fx|Nx|Ox|Ux|At|Tn|Aq|St|No|Sx|Ic|Qq|Do|Dc|Oo|Oc)\s+")


def read_manual(path: Path) -> Iterator[Document]:
    """Manual pages (man and mdoc macros): filled text, code examples (.nf/.EX) left out."""
    text = read_text(path)
    for escape, plain in _TROFF_CHARS.items():
        text = text.replace(escape, plain)
    text = _TROFF_FONT.sub("", text)
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    paragraphs, current, verbatim = [], [], False
    for line in text.splitlines():
        if line.startswith((".nf", ".EX", ".TS", ".Bd -literal", ".CS", ".SH NAME", ".SH SYN",
                            ".SH \"SEE ALSO\"", ".SH SEE")):
            verbatim = True
        elif line.startswith((".fi", ".EE", ".TE", ".Ed", ".CE", ".SH", ".Sh")):
            verbatim = False
        if _TROFF_BREAK.match(line) or not line.strip():
            paragraphs.append(" ".join(current))
            current = []
        elif verbatim or line.startswith(("'", '.\\"', ".so", ".ie", ".el", ".if", ".de", ".ds")):
            continue
        elif line.startswith("."):
            macro = line[1:].split(" ", 1)
            if macro[0] in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB") and len(macro) > 1:
                spaced = macro[0] in ("B", "I")
                parts = re.findall(r'"[^"]*"|\S+', macro[1])
                current.append((" " if spaced else "").join(p.strip('"') for p in parts))
            elif _MDOC_INLINE.match(line[1:] + " "):
                rest = _MDOC_INLINE.sub("", line[1:] + " ").strip()
                rest = re.sub(r" ([.,;:)])", r"\1", rest)
                current.append(rest or name)
        else:
            current.append(line)
    paragraphs.append(" ".join(current))
    yield path.name, paragraphs


_POD_CODE = re.compile(r"[A-Z]<<+ (.*?) >>+|[A-Z]<([^<>]*)>", re.S)


def read_pod(path: Path) -> Iterator[Document]:
    """Perl's POD: paragraphs that are neither commands nor indented."""
    text = read_text(path)
    for _ in range(3):  # nested codes, three levels deep at most in practice
        text = _POD_CODE.sub(lambda m: (m[1] or m[2] or "").split("|")[0], text)
    yield path.name, [b for b in re.split(r"\n\s*\n", text) if b[:1] not in ("=", " ", "\t")]


def read_dictionary(path: Path, entries_per_document: int = 200) -> Iterator[Document]:
    """dictd dictionaries: consecutive entries, cut into documents of a fixed number of entries.
    Etymologies in brackets, subject labels in <> and the names of quoted authors are left out."""
    text = re.sub(r"\[[^\]]*\]|<[^>]*>|[{}\\]|\s--[A-Z][^\n]*", "", read_text(path))
    blocks = re.split(r"\n(?=\S)", text)
    for start in range(0, len(blocks), entries_per_document):
        entries = []
        for block in blocks[start:start + entries_per_document]:
            entries += re.split(r"\n\s*\n|\n\s*(?:\d+|\([a-z]\))[.:]? ", block)
        yield f"{path.name}/{start // entries_per_document:04d}", entries


def read_sword(path: Path) -> Iterator[Document]:
    """SWORD zText modules: `.bzs` lists offset and bytes of the zlib blocks in `.bzz`, one block a
    book. Two translations of one book get the same name, so they share a split."""
    index, data = path.with_suffix(".bzs").read_bytes(), path.read_bytes()
    for offset, size, _ in struct.iter_unpack("<III", index):
        text = zlib.decompress(data[offset:offset + size]).decode("utf-8", "replace")
        book = re.search(r'osisID="(\w+)', text)
        if book is None:
            continue
        text = re.sub(r"<note\b.*?</note>|<title\b.*?</title>", "", text, flags=re.S)
        verses = [v for v in re.split(r"\n|\r|<chapter[^>]*>|<verse[^>]*>|<div[^>]*>", text)]
        verses = [_SPACE.sub(" ", html.unescape(_TAG.sub("", v))).strip() for v in verses]
        # Verses are short: eight to a paragraph reads like the printed page.
        verses = [v for v in verses if v]
        yield f"bible/{book[1]}", [
            " ".join(verses[i:i + 8]) for i in range(0, len(verses), 8)]


def read_quoted(path: Path) -> Iterator[Document]:
    """Game data whose spoken text stands in backquotes."""
    yield path.name, re.findall(r"`([^`]*)`", read_text(path))


READERS = {
    "markup": (read_markup, (".html", ".htm", ".xhtml", ".page", ".docbook", ".xml", ".html.gz")),
    "manual": (read_manual, (*(f".{s}.gz" for s in "123456789"), ".3tcl.gz", ".n.gz",
                             "freebsd.gz")),
    "pod": (read_pod, (".pod",)),
    "plain": (read_plain, (".txt", ".md", ".txt.gz", ".md.gz")),
    "dictionary": (read_dictionary, (".dict.dz",)),
    "sword": (read_sword, (".bzz",)),
    "quoted": (read_quoted, (".txt",)),
}
