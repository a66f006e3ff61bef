"""What the site adds when it is built: figures inlined so that they follow the colour scheme, and tables of reference.

`<!-- table: methods -->`, `<!-- table: settings -->` and `<!-- table: commands -->` are filled from the package itself,
so that they cannot grow stale.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FIGURE = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]*figures/[\w-]+\.svg)\)$", re.MULTILINE)
TABLE = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Leave out results that have not been measured yet: their pages are written by benchmarks."""
    for section in config["nav"]:
        if "Results" in section:
            section["Results"] = [
                entry for entry in section["Results"] if (DOCS / _file(entry)).exists()
            ]
    return config


def _file(entry: Any) -> str:
    """The page of a line of the navigation, with or without a title."""
    return str(next(iter(entry.values()))) if isinstance(entry, dict) else str(entry)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs for every page."""
    folder = (DOCS / page.file.src_uri).parent
    markdown = TABLE.sub(lambda found: TABLES[found[1]](), markdown)
    return FIGURE.sub(lambda found: inlined(folder / found["path"], found["alt"]), markdown)


def inlined(path: Path, alt: str) -> str:
    """The figure as part of the page; its own style is for use as a file only."""
    text = path.read_text(encoding="utf-8")
    drawing = re.sub(
        r"<style.*?</style>|<metadata>.*?</metadata>",
        "",
        text[text.index("<svg") :],
        flags=re.DOTALL,
    )
    label = html.escape(alt, quote=True)
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    body = "".join(
        line.strip() + " " for line in drawing.splitlines()
    )  # no blank line: Markdown would start anew
    return f'<figure class="fig">{body}<figcaption>{html.escape(alt)}</figcaption></figure>'


def methods_table() -> str:
    """Every method, one row."""
    from puidrec.methods import METHODS

    rows = [(f"`{spec.name}`", spec.description, spec.needs) for spec in METHODS.values()]
    return _table(("method", "what it does", "needs"), rows)


def settings_table() -> str:
    """Every setting with its default."""
    from puidrec.settings import Settings

    fields = Settings.model_fields.items()
    rows = [(f"`{name}`", f"`{field.default}`", field.description or "") for name, field in fields]
    return _table(("setting", "default", "meaning"), rows)


def commands_table() -> str:
    """Every command: what it does, its options, an example."""
    import typer

    from puidrec.cli.main import app

    return "\n\n".join(
        _command(name, command) for name, command in _walk("puid", typer.main.get_command(app))
    )


def _walk(name: str, command: Any) -> list[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        return [(name, command)]
    return [found for key, child in below.items() for found in _walk(f"{name} {key}", child)]


def _command(name: str, command: Any) -> str:
    said = " ".join(line.strip() for line in (command.help or "").split("\n\n")[0].splitlines())
    rows = []
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden and "--help" not in param.opts:
            default = (
                param.default
                if isinstance(param.default, str | int | float) and param.default is not False
                else ""
            )
            rows.append(
                (
                    f"`{', '.join(param.opts)}`",
                    param.help or "",
                    f"`{default}`" if default != "" else "",
                )
            )
    arguments = " ".join(
        param.metavar or param.name.upper()
        for param in command.params
        if param.param_type_name == "argument"
    )
    example = (command.epilog or "").removeprefix("Example: ")
    shown = f"\n\n```console\n{example}\n```" if example else ""
    return (
        f"## {name} {arguments}".rstrip()
        + f"\n\n{said}{shown}\n\n"
        + _table(("option", "meaning", "default"), rows)
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
        for row in lines
    )


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "settings": settings_table,
    "commands": commands_table,
}
