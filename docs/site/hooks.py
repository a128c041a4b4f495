"""What the generator of the site cannot do by itself: see mkdocs.yml.

The pages keep their places in the repository, so a link works on a forge and on the site.
"""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
import nbformat
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
SHOWN = (
    *(
        "*.md",
        "bench/**/*.md",
        "bench/**/*.png",
        "docs/**/*.*",
        "examples/**/*.py",
        "examples/**/*.yaml",
        "lua/*.md",
        "notebooks/*.ipynb",
    ),
    *("tests/*.md", "tests/**/*.jsonl"),
)
_FOR_THE_SITE = re.compile(r"<!-- site\n(.*?)-->", re.DOTALL)


class _Notebook(File):
    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: Any) -> Files:
    """Take the files of the theme, and ours under their paths in the repository."""
    ours = [path for pattern in SHOWN for path in sorted(ROOT.glob(pattern))]
    shown = [
        (_Notebook if path.suffix == ".ipynb" else File)(
            path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls
        )
        for path in ours
        if path.suffix != ".py" or path.is_relative_to(ROOT / "examples")
    ]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *shown])


def on_page_read_source(page: Any, config: Any) -> str | None:
    """Write a notebook as Markdown."""
    if not isinstance(page.file, _Notebook):
        return None
    return "\n\n".join(map(_cell, nbformat.read(page.file.abs_src_path, as_version=4).cells))


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    return "\n\n".join([f"```python\n{cell.source}\n```", *map(_output, cell.outputs)])


def _output(output: Any) -> str:
    data = output.get("data", {})
    if picture := data.get("image/png"):
        return f"![Plot](data:image/png;base64,{''.join(picture.split())})"
    return f"```text\n{(output.get('text') or data['text/plain']).rstrip()}\n```"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Show what is hidden on a forge."""

    def shown(part: re.Match[str]) -> str:
        name = part[1].strip()
        return _commands() if name == "commands" else docstrings(name)

    docstrings = runpy.run_path(str(ROOT / "docs/write_tables.py"))["docstrings"]
    return _FOR_THE_SITE.sub(shown, markdown)


def _commands() -> str:
    """The options of every command, as typer writes them."""
    command = [sys.executable, "-m", "typer", "rmq_spark.cli.app", "utils", "docs", "--name", "rmq"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    before, _, commands = run.stdout.partition("**Commands**:")
    options = before[before.index("**Options**") :]
    return f"## Before the command\n\n{options}{commands[commands.index('## `rmq') :]}"


class Docstrings(griffe.Extension):
    """What griffe does not see in the source, or Markdown not in a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Leave an example indented, without its two colons, and show arguments as code."""
        if obj.docstring is None:
            return
        text = re.sub(r"^::\n\n", "", obj.docstring.value, flags=re.MULTILINE)
        text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
        named = [*obj.members, *(one.name for one in getattr(obj, "parameters", ()))]
        one = "|".join(map(re.escape, named)) or "(?!)"
        arguments = rf"(?m)(?:^|(?<=[.;]\s))(?:{one})(?:,\s(?:{one}))*(?=:\s)"
        obj.docstring.value = re.sub(
            arguments, lambda found: re.sub(r"\w+", r"`\g<0>`", found[0]), text
        )

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show the fields of a NamedTuple as arguments."""
        if [str(base) for base in cls.bases] == ["NamedTuple"]:
            fields = [
                griffe.Parameter(
                    name,
                    annotation=field.annotation,
                    default=field.value,
                    kind=griffe.ParameterKind.positional_or_keyword,
                )
                for name, field in cls.attributes.items()
                if field.annotation is not None and "property" not in field.labels
            ]
            parameters = griffe.Parameters(griffe.Parameter("self"), *fields)
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show defaults by their values, and methods of asyncio like those that they await."""
        for room in ("aio", "client", "outbox"):
            for function in _functions(pkg[room]):
                _show_defaults(function)
        module = pkg["aio.client"]
        for owner in module.classes.values():
            for name, member in [*owner.attributes.items()]:
                if found := re.fullmatch(r"_awaited\((\w+)\.(\w+)\)", str(member.value)):
                    awaited = module[found[1]].final_target.all_members[found[2]]
                    owner.set_member(name, _coroutine_of(awaited))


def _functions(owner: griffe.Object) -> Iterator[griffe.Function]:
    for member in owner.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)


def _show_defaults(function: griffe.Function) -> None:
    for parameter in function.parameters:
        named = parameter.default
        if isinstance(named, griffe.ExprName) and named.name.isupper():
            module, _, name = named.canonical_path.rpartition(".")
            parameter.default = repr(getattr(import_module(module), name))


def _coroutine_of(function: griffe.Function) -> griffe.Function:
    method = griffe.Function(
        function.name,
        parameters=function.parameters,
        returns=function.returns,
        docstring=function.docstring,
    )
    method.labels.add("async")
    return method
