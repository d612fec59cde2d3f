"""The tasks of the agent's suite: none is solved by doing nothing, each by its solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import agent_tasks
import pytest

from localspec.agent.tools.folder import Folder

SUITE = Path(__file__).parents[2] / "suites" / "agent.toml"


def test_no_task_is_solved_by_doing_nothing(tmp_path: Path) -> None:
    found = agent_tasks.read(SUITE)
    assert len(found) == 24
    for task in found:
        folder = tmp_path / task.name
        folder.mkdir()
        task.lay_out(folder)
        assert sorted(task.files) == sorted(Folder(folder).name(one) for one in Folder(folder).files(folder))
        assert not task.solved(folder, "I have done it.")


def changed(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text("utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), "utf-8")


def renamed(folder: Path, names: Sequence[str], old: str, new: str) -> None:
    for name in names:
        changed(folder, name, old, new)


def add_flag(folder: Path) -> None:
    option = 'parser.add_argument("--verbose", action="store_true")'
    changed(folder, "hello.py", "options =", f"{option}\noptions =")
    changed(folder, "hello.py", '!")', '!")\nif options.verbose:\n    print("done")')


ADA = '{"name": "Ada Lovelace", "age": 36, "city": "London"}'
LEAP = "def is_leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"
REMOVE = "    def remove(self, name):\n        del self.items[name]\n\n    def total"
GREET = 'def greet(name, greeting="Hello"):\n    return f"{greeting}, {name}!"\n'
TESTED = "from area import area\n\nassert area(3, 4) == 12\n"
ITEM = ("shop/items.py", "shop/stock.py", "main.py")
VERSIONED = ("pyproject.toml", "tool/__init__.py", "README.md")
AREA = "def area(width, height):\n    return width * height\n"
SOLUTIONS: dict[str, str | Callable[[Path], object]] = {
    "constant": lambda folder: changed(folder, "config.py", "30", "60"),
    "count-lines": "names.txt has 23 lines.",
    "failing-test": lambda folder: changed(folder, "prices.py", "result = price", "result += price"),
    "form": lambda folder: (folder / "person.json").write_text(ADA),
    "rename": lambda folder: renamed(folder, ("settings.py", "main.py"), "load_file", "read_settings"),
    "new-file": lambda folder: (folder / "area.py").write_text(AREA),
    "find-definition": "It is in tools/dates.py",
    "sum": "1,234",
    "append": lambda folder: changed(folder, "todo.md", "- call Grace\n", "- call Grace\n- buy milk\n"),
    "flag": add_flag,
    "remove-line": lambda folder: changed(folder, "server.ini", "debug = true\n", ""),
    "title": lambda folder: changed(folder, "README.md", "Old Name", "New Name"),
    "queue": lambda folder: changed(folder, "line.py", ".pop()", ".pop(0)"),
    "unittest": lambda folder: (folder / "leap.py").write_text(LEAP),
    "boundary": lambda folder: changed(folder, "pages.py", "total // size + 1", "-(-total // size)"),
    "method": lambda folder: changed(folder, "basket.py", "    def total", REMOVE),
    "who-uses": "posts.py and web/urls.py call it.",
    "why": "settings.json has no port.",
    "write-test": lambda folder: (folder / "test_area.py").write_text(TESTED),
    "rename-class": lambda folder: renamed(folder, ITEM, "Item", "Product"),
    "traceback": lambda folder: changed(folder, "records.py", '";"', '":"'),
    "import-error": lambda folder: changed(folder, "app.py", "fahrenheit", "to_fahrenheit"),
    "version": lambda folder: renamed(folder, VERSIONED, "1.2.0", "1.3.0"),
    "parameter": lambda folder: (folder / "greet.py").write_text(GREET),
}


@pytest.mark.parametrize("task", agent_tasks.read(SUITE), ids=lambda task: task.name)
def test_each_task_is_solved_by_its_solution(task: agent_tasks.Task, tmp_path: Path) -> None:
    task.lay_out(tmp_path)
    solution = SOLUTIONS[task.name]
    if isinstance(solution, str):
        assert task.solved(tmp_path, solution)
    else:
        solution(tmp_path)
        assert task.solved(tmp_path, "")
