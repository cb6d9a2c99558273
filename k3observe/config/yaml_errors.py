"""What the YAML parser finds wrong, in words that say what to do."""

from __future__ import annotations

import re

import yaml

from k3observe.config.errors import Problem

_FIXES = (
    (r"mapping values are not allowed", "check the indentation, and quote a value that holds ': '"),
    (r"could not find expected ':'", "write a space after the colon of every key"),
    (r"expected '-' indicator|expected key|<block end>", "indent it like the lines that it belongs to"),
    (r"expected <document start>|another document", "keep one document: remove the line --- or ..."),
    (r"unknown escape character", "use single quotes, or double the backslash"),
    (r"incompatible YAML document|directive", "remove the line that starts with %"),
    (r"undefined alias", "write the value out: anchors and aliases are not accepted"),
)
_ENCODINGS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def syntax(error: yaml.MarkedYAMLError, text: str, name: str) -> Problem:
    """An error of the parser with its line and what to do; an open quote or bracket stands where it was opened."""
    what, opened = str(error.problem or error.context), error.context_mark
    mark = error.problem_mark or opened
    line = mark.line + 1 if mark else 1
    if "quoted scalar" in str(error.context) and "end of stream" in what and opened:
        return Problem("opens a quote that is not closed", file=name, line=opened.line + 1, fix="add the closing quote")
    quote = _open_quote(text, line) if "expected" in what else 0
    if quote:
        unclosed = "opens a quote that is not closed on its line"
        return Problem(unclosed, file=name, line=quote, fix="add the closing quote")
    if "flow" in str(error.context):
        place = f" what line {opened.line + 1} opens" if opened and "node" not in str(error.context) else " the bracket"
        fix = f"close{place} with }} or ], and quote a value that holds one of ,[]{{}}"
        return Problem(what, file=name, line=line, fix=fix)
    if "cannot start any token" in what and mark:
        row = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        if row[: mark.column + 1].endswith("\t"):
            return Problem("is indented by a tab, which YAML does not take", file=name, line=line, fix="use spaces")
        start = row[mark.column : mark.column + 1]
        return Problem(f"has a value that starts with {start}", file=name, line=line, fix="put it in quotes")
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, what)), "")
    return Problem(what, file=name, line=line, fix=fix)


def _open_quote(text: str, before: int) -> int:
    """The first line up to an error that has a value with one quotation mark; such a quote ends at the next one."""
    for number, line in enumerate(text.splitlines()[:before], 1):
        value = re.search(r"(?:[:,\[{-]\s+|[\[{])(\"[^#]*)$", line)
        if value and value[1].replace('\\"', "").count('"') % 2:
            return number
    return 0


def unreadable(error: yaml.YAMLError | ValueError, text: str, name: str) -> Problem:
    """A character that no YAML may hold, with its line."""
    if isinstance(error, yaml.reader.ReaderError) and isinstance(error.character, int):
        line = text.count("\n", 0, max(0, text.find(chr(error.character)))) + 1
        return Problem(f"holds the character U+{error.character:04X}", file=name, line=line, fix="remove it")
    return Problem(f"is no YAML: {error}".split("\n")[0], file=name, line=1)


def encoding(raw: bytes) -> str:
    """What to do with a file that is not UTF-8."""
    guess = next((guess for mark, guess in _ENCODINGS if raw.startswith(mark)), "")
    if not guess:
        try:
            raw.decode("gb18030")
            guess = "GBK"
        except UnicodeDecodeError:
            return "save it as UTF-8"
    return f"save it as UTF-8, it looks like {guess}: iconv -f {guess} -t UTF-8"
