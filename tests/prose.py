"""The rules of prose, and all that breaks them: `python -m tests.prose [path…]` lists it for files and folders.

Prose is docstrings, comments and texts of code that users read, and the pages of the documentation.
`docs/contributing.md` has the rules in words; `tests/test_prose.py` makes them fail.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("outboxkit/**/*.py", "workers/*.py", "examples/**/*.py", "docs/site/*.py")
PAGES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "examples/**/README*")
SENTENCE_WORDS = 25
FILLER = "\0"
"""Stands for each character of markup, so that an offset in a text still tells its line."""
DRAWN = re.compile(r"[├└│]")
SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|LOCK|FROM|WHERE|BEGIN|VALUES)\b")

PEOPLE = (
    r"(?:people|persons?|someone|somebody|anyone|anybody|everyone|everybody|nobody|those|operators?|users?|readers?|teams?|"
    r"developers?|engineers?|customers?|maintainers?|newcomers?|contributors?|authors?)[\0,]* $|\bby $"
)
PLACES = (
    r"\b(?:sees?|shows?|shown|says?|saying|said|tells?|telling|told|knows?|knowing|known|decides?|finds?|reads?|names?|out|"
    r"places?|points?|positions?|files?|folders?|modules?|pages?|tables?|sections?|lines?|director(?:y|ies)|schemas?|code|"
    r"databases?|hosts?|machines?|everywhere|anywhere|SQLite|PostgreSQL|RabbitMQ|from|to|of|about|on|and|or)[\0,]* \(?$"
)
NEVER = r"(?!)"
RETIRED = {
    *("bell", "sleeper", "ring", "rung", "lane", "ladder", "upkeep", "avoidance", "caution", "intake", "culprit"),
    *("suspect", "suspicion", "door"),
}
PARTICIPLES = {"found", "given", "made", "chosen", "asked", "wanted", "kept", "told"}
PATTERNS = {
    "say “is not a”": (
        r"\b(?:is|are|was|were|be|been|being) no (?!longer\b|more\b|less\b|later\b)\w+",
        r"\b[Tt]here $",
    ),
    "say “if” or “when”": (
        r"\b[Ww]here\b(?! to\b)(?![^.!]*\?)(?! (?:it|they) (?:is|are|was|were|ended|began|belongs?)(?:[.,;:)]|$))",
        PLACES,
    ),
    "a process is “the relay”, not “who”": (r"\b[Ww]ho(?:m|(?:so)?ever)?\b(?! resolved)(?![^.!]*\?)", PEOPLE),
    "a retired word": (rf"(?i)(?<![\w.])(?:{'|'.join(sorted(RETIRED))})s?\b(?![\w(./])", NEVER),
}
"""For each rule the pattern that breaks it, and after which words it does not."""
RELATIVE = re.compile(r"\s*(?:What|Which|How|Where|Why|Whom?|Whose|Whoever|Whatever|That which)\b")


@dataclass(frozen=True)
class Text:
    """One paragraph, list item, table cell, comment or string, with the line on which it begins."""

    line: int
    words: str
    docstring: bool = False
    heading: bool = False

    def line_at(self, offset: int) -> int:
        return self.line + self.words.count("\n", 0, offset)


@dataclass(frozen=True)
class Offender:
    """One place that breaks a rule."""

    path: str
    line: int
    rule: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.excerpt}"


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files(*names: str) -> list[Path]:
    """The files with prose at or below these paths; without a path, all of the project."""
    every = {path for pattern in (*CODE, *PAGES) for path in ROOT.glob(pattern)}
    roots = [Path(name).resolve() for name in names]
    return sorted(path for path in every if not roots or any(path.is_relative_to(root) for root in roots))


def _blank(text: str, pattern: str, kept: str | None = None) -> str:
    """Replace a markup by filler of the same length, all but one of its groups."""

    def blanked(match: re.Match[str]) -> str:
        whole = re.sub(r"[^\n]", FILLER, match[0])
        if kept is None:
            return "X" + whole[1:]
        start, end = (at - match.start() for at in match.span(kept))
        return whole[:start] + match[kept] + whole[end:]

    return re.sub(pattern, blanked, text, flags=re.DOTALL)


def _inline(text: str) -> str:
    """A text without the marks of code, links and emphasis; code is one word."""
    text = _blank(text, r"``[^`]+(?:`[^`]+)*``|`[^`]+`")
    text = _blank(text, r"!?\[(?P<text>[^\]]*)\]\((?P<url>[^)]*)\)", "text")
    text = _blank(text, r"https?://\S+")
    return re.sub(r"\*\*?(?=\S)|(?<=\S)\*\*?", lambda mark: FILLER * len(mark[0]), text)


def paragraphs(text: str, line: int, *, docstring: bool = False) -> Iterator[Text]:
    """Split prose at blank lines, list items, headings and cells of tables. Blocks that are indented are code."""
    block: list[str] = []
    start = line
    first = True
    for number, row in enumerate([*text.split("\n"), ""], line):
        plain = row.strip()
        item = re.match(r"\s*(?:[*-]|\d+\.) |#+ |\|| {4,}(?=[A-Z]\w+: )|(?:Args|Raises|Returns|Yields):$", row)
        if (not plain or item or DRAWN.search(row)) and block:
            yield Text(start, _inline("\n".join(block)), docstring=docstring and first)
            block, first = [], False
        if DRAWN.search(row):
            continue
        if plain.startswith("|"):
            cells = [cell for cell in plain.replace(r"\|", "/").strip("|").split("|") if re.search("[a-z]", cell)]
            yield from (Text(number, _inline(cell.strip()), heading=True) for cell in cells)
        elif plain.startswith("#"):
            yield Text(number, _inline(plain.strip("# ")), heading=True)
        elif plain:
            start = start if block else number
            block.append(re.sub(r"^(?:[*-]|\d+\.) ", "", plain))


def page(text: str) -> Iterator[Text]:
    """The prose of a page: without fenced blocks and comments."""
    text = re.sub(
        r"^ *(```|~~~).*?^ *\1 *$|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.S | re.M
    )
    text = re.sub(r"^ *(?:!!!|\?\?\?|===).*$|^\{.*\}$|<[^>]+>", "", text, flags=re.M)
    yield from paragraphs(text, 1)


def _documented(tree: ast.AST) -> Iterator[ast.Constant]:
    """Each docstring: of modules, classes and functions, and those below a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def _comments(source: str) -> Iterator[Text]:
    """Each comment; lines of their own that follow each other are one."""
    rows: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:noqa|type:|pragma|fmt:)", token.string):
            continue
        own = token.line.lstrip().startswith("#")
        if rows and not (own and token.start[0] == last + 1):
            yield Text(last - len(rows) + 1, _inline("\n".join(rows)))
            rows = []
        rows.append(token.string.strip("# "))
        last = token.start[0]
    if rows:
        yield Text(last - len(rows) + 1, _inline("\n".join(rows)))


def _shown(tree: ast.AST, documented: set[ast.Constant]) -> Iterator[Text]:
    """Each string that reads as prose: four words or more, and not SQL. A value in it is one word."""
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in values)
            case ast.Constant(value=str(text)) if node not in documented and node not in parts:
                pass
            case _:
                continue
        if len(re.findall(r"(?<!\S)[a-z]{2,}", text)) >= 3 and not SQL.search(text):
            yield from paragraphs(re.sub(r"\[/?[a-z ]+\]", " ", text), node.lineno)


def module(source: str) -> Iterator[Text]:
    """The prose of a module: its docstrings, comments and texts."""
    tree = ast.parse(source)
    documented = list(_documented(tree))
    for node in documented:
        yield from paragraphs(str(node.value), node.lineno, docstring=True)
    yield from _comments(source)
    yield from _shown(tree, set(documented))


def sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Each sentence with its offset. One ends at a full stop, a question or an exclamation mark."""
    start = 0
    ends = r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.?!…][)\"”'*\0]*(?:\s|$)"
    for end in [*(match.end() for match in re.finditer(ends, text.words)), len(text.words)]:
        yield start, text.words[start:end]
        start = end


def _count(sentence: str) -> int:
    return len(re.findall(r"(?<![\w'-])\w[\w'./:-]*", sentence.replace(FILLER, "")))


def of_text(text: Text) -> Iterator[tuple[int, str, str]]:
    """What breaks a rule in one text: line, rule, excerpt."""
    flat = text.words.replace("\n", " ")
    for rule, (pattern, fine_after) in PATTERNS.items():
        for match in re.finditer(pattern, flat):
            titled = text.heading and match.start() == 0
            if not titled and not re.search(fine_after, flat[: match.start()]):
                excerpt = flat[max(0, match.start() - 20) : match.end() + 25].replace(FILLER, "")
                yield text.line_at(match.start()), rule, f"…{excerpt}…"
    if text.docstring and RELATIVE.match(flat):
        yield text.line, "a docstring says what the thing is", flat[:60].replace(FILLER, "")
    for start, sentence in sentences(Text(text.line, flat)):
        if (count := _count(sentence)) > SENTENCE_WORDS:
            excerpt = sentence.replace(FILLER, "").strip()
            yield text.line_at(start), f"{count} words in a sentence", f"{excerpt[:70]}…"


def names(source: str) -> Iterator[tuple[int, str]]:
    """Each name that a module gives to a function, class, parameter or variable, but not to fields of a class."""
    tree = ast.parse(source)
    fields = {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        for target in ast.walk(statement)
        if isinstance(statement, ast.Assign | ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if node not in fields:
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def of_name(name: str) -> str | None:
    """The rule that a name breaks."""
    if name.strip("_") in PARTICIPLES:
        return "a variable is a noun"
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return "a retired word" if {part.removesuffix("s") for part in parts} & RETIRED else None


def offenders(path: Path) -> list[Offender]:
    """All that breaks a rule in a file, by line."""
    source = path.read_text()
    read: Callable[[str], Iterator[Text]] = module if path.suffix == ".py" else page
    places = [place for text in read(source) for place in of_text(text)]
    if path.suffix == ".py":
        places += [(line, rule, name) for line, name in names(source) if (rule := of_name(name))]
    return [Offender(shown(path), *place) for place in sorted(set(places))]


def main(arguments: list[str]) -> int:
    """Print all that breaks a rule in the given files and folders."""
    places = [offender for path in files(*arguments) for offender in offenders(path)]
    print(*places, f"{len(places)} offenders", sep="\n")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
