"""What the built documentation does with pages beyond Markdown: links that leave the documentation."""

import pathlib
import posixpath
import re

from mkdocs.plugins import event_priority

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


@event_priority(50)
def on_page_markdown(markdown, page, config, files):
    """Links to examples lead to their place on the page of examples; to other files of the repository, to none.

    In the repository both are links. The built documentation does not know where the repository is.
    """
    if page.file.src_uri == "changes.md":
        changes = pathlib.Path(config.config_file_path).with_name("CHANGELOG.md").read_text("utf-8")
        return changes.replace("](docs/", "](")

    def replaced(link):
        text, target = link.group(1), link.group(2)
        if "://" in target:
            return link.group(0)
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), target))
        if path.startswith("docs/"):
            return link.group(0)
        if path.startswith("examples/"):
            up = "../" * page.file.src_uri.count("/")
            return f"[{text}]({up}examples.md#{posixpath.basename(path).removesuffix('.py').replace('_', '-')})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(replaced, markdown)
