"""The examples of the pages and of the notebook, executed as a reader would."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import re
from typing import Any, Dict, List

from .kit import ROOT, Case, engine

#: A comment that names the value of its line.
SHOWN = re.compile(r"# → (.*)$")


def execute(code: str, names: Dict[str, Any]) -> List[str]:
    """Executes code statement by statement. Returns a line for each value that differs from its comment `# → VALUE`."""
    wrong = []
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
        getattr(value, "_repr_html_", lambda: None)()
        shown = SHOWN.search(lines[(statement.end_lineno or statement.lineno) - 1])
        if shown and repr(value) != shown.group(1):
            wrong.append(f"{lines[statement.lineno - 1]}: {value!r}")
    return wrong


class Pages(Case):
    def check(self, path: pathlib.Path, least: int) -> None:
        """Executes the blocks of a page in order; a block of YAML is the budget file that they name."""
        names: Dict[str, Any] = {}
        blocks = re.findall(r"```(python|yaml)\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
        with engine() as url:
            for kind, code in blocks:
                if kind == "yaml":
                    pathlib.Path("budget.yaml").write_text(code)
                    continue
                # A real endpoint would take the page's time; the engine takes less.
                code = code.replace("http://host:8000/v1", url).replace('for_="60s", out', 'for_="2s", out').replace('time="10m"', 'time="5s"')
                self.assertEqual(execute(code, names), [], path.name)
        self.assertGreaterEqual(len(blocks), least)

    def test_the_reference(self) -> None:
        self.check(ROOT / "docs/reference/python.md", 5)

    def test_the_readme(self) -> None:
        self.check(ROOT / "packages/python/README.md", 1)

    def test_the_notebook(self) -> None:
        os.environ["MPLBACKEND"] = "agg"
        notebook = json.loads((ROOT / "docs/examples/plimsoll.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        names: Dict[str, Any] = {}
        for cell in cells:
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), "a notebook is stored without outputs")
            self.assertEqual(execute("".join(cell["source"]), names), [])
        self.assertEqual(len(cells), len({cell["id"] for cell in cells}))

    def test_a_wrong_comment_is_found(self) -> None:
        self.assertEqual(execute("1 + 1  # → 3\n2  # → 2", {}), ["1 + 1  # → 3: 2"])
