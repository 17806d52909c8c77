"""Hooks of MkDocs, for pages that are also read on a code host and run by tests.

Four things differ from plain Markdown. The output of a block looks unlike the block, and has no button to copy it. A
link that leaves docs/, such as one to a test, leads to a page that shows that file. The changelog is a page. A diagram
is put into the page itself, so that it has the colours of the reader's theme.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
CHANGELOG = "changelog.md"
OUTPUT = re.compile(r"(?<=^```\n\n)```text$", re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^]]*)\]\((?P<path>\.\.?/[^)#]*)(?P<anchor>#[^)]*)?\)")
DIAGRAM = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?:[^"]*/)?diagrams/(?P<name>[a-z-]+\.svg)" />')
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LOST_LIST = re.compile(r"^ {1,3}[*+-] .*|^[^\s*|#<+-].*\n[*+-] .*", re.MULTILINE)
NAME = re.compile(r"(?<=<code>)[^<\n]+(?=</code>)")
LINE = re.compile(r'id="(__span-0-\d+)"')


def target(page: str, link: str) -> str:
    """The path below the repository of what a page below docs/ links to."""
    return normpath(f"docs/{dirname(page)}/{link}")


def shown(path: str) -> str:
    """The page of a file that is not below docs/."""
    return CHANGELOG if path == "CHANGELOG.md" else f"source/{path}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that docs/ does not have: the changelog, and each file outside of it that a page links to."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    paths = {target(page, link["path"]) for page, text in texts.items() for link in LINK.finditer(text)}
    changelog = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, CHANGELOG, content=changelog))
    for path in sorted(paths - {"CHANGELOG.md"}):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, shown(path), content=listing(path)))
    return files


def listing(path: str) -> str:
    language = {".py": "python", ".md": "markdown"}.get(Path(path).suffix, "text")
    head = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"
    return f"{head}# {path}\n\n`````{{ .{language} linenums=1 }}\n{(ROOT / path).read_text()}\n`````\n"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A page whose outputs are marked, and whose links out of docs/ lead to the pages that show those files."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    lost = LOST_LIST.search(CODE.sub("", markdown))
    if lost:
        raise PluginError(f"{uri}: a list in a list is indented by 4, and a list follows a blank line: {lost[0]}")
    markdown = OUTPUT.sub("```{ .text .output .no-copy }", markdown)
    return LINK.sub(lambda match: link(uri, match), markdown)


def link(page: str, match: re.Match[str]) -> str:
    path = target(page, match["path"])
    if path.startswith("docs/"):
        return match[0]
    if not (ROOT / path).is_file():
        raise PluginError(f"{page} links to {path}, which is not there")
    anchor = match["anchor"] or place(path, match["text"].strip("`"))
    return f"[{match['text']}]({relpath(shown(path), dirname(page) or '.')}{anchor})"


def place(path: str, name: str) -> str:
    """The line of a test that a link names, or nothing."""
    if not path.endswith(".py"):
        return ""
    lines = (ROOT / path).read_text().splitlines()
    at = [number for number, line in enumerate(lines, 1) if re.match(rf" *(?:async )?(?:def|class) {name}\b", line)]
    return f"#__span-0-{at[0]}" if at else ""


def on_page_content(html: str, page: Page, **_: object) -> str:
    """A page with its diagrams in it, and long names that may be broken at their joints.

    The lines of a listing are places that links may lead to.
    """
    if page.file.src_uri.startswith("source/"):
        page.present_anchor_ids = {*(page.present_anchor_ids or ()), *LINE.findall(html)}
    html = NAME.sub(lambda match: re.sub(r"([_./])(?=\w)", r"\1<wbr>", match[0]), html)
    return DIAGRAM.sub(lambda match: drawing(match["name"]), html)


def drawing(name: str) -> str:
    """The text of a diagram, hidden from the search."""
    return (ROOT / "docs" / "diagrams" / name).read_text().replace("<svg ", '<svg data-search-exclude="" ', 1)
