"""The demands that the words of a task make."""

from __future__ import annotations

import pytest

from localspec.agent.verification.task import demands


@pytest.mark.parametrize(
    "task",
    [
        "Why does the test fail?",
        "Which files call the function slugify?",
        "What is the sum of the prices in sales.csv? They stand behind the commas.",
        "How do I run it?",
        "Search for 'def parse_date'. Which file has it?",
        "Explain main.py",
    ],
)
def test_a_question_changes_nothing(task: str) -> None:
    assert demands(task).question
    assert not demands(task).change


@pytest.mark.parametrize(
    "task",
    [
        "Can you fix the bug?",
        "Why does it fail? Fix it.",
        "Is main.py right? If not, correct it.",
        "Explain what main.py does and write it to README.md",
        "Make the failing test pass.",
        "Find out why main.py crashes and run it again",
    ],
)
def test_an_order_is_no_question(task: str) -> None:
    assert not demands(task).question


@pytest.mark.parametrize(
    ("task", "run"),
    [
        ("Add a --verbose flag to hello.py and run it", True),
        ("Run main.py and tell me what it prints", True),
        ("Write test_area.py, and run the tests.", True),
        ("Make it print its name when I run it", False),
        ("Fix main.py but do not run it", False),
        ("Fix main.py, but don't run it", False),
        ("Fix main.py, but don\u2019t run it", False),
        ("How do I run it?", False),
        ("Describe how to run it in README.md", False),
    ],
)
def test_a_run_that_is_asked_for(task: str, run: bool) -> None:
    assert demands(task).run == run


@pytest.mark.parametrize(
    ("task", "tests"),
    [
        ("Write a file test_area.py that tests the function area", True),
        ("Add a test for area() and make it pass", True),
        ("Update the tests for area.py", True),
        ("Fix test_area.py", True),
        ("Rename the class Item to Product in all files.", True),
        ("Make the failing test pass.", False),
        ("Fix the bug so that test_area.py passes", False),
        ("Find the reason and fix the program, not the test.", False),
        ("Update prices.py so the tests pass", False),
        ("Rename area everywhere, but do not change the tests.", False),
        ("Rename area everywhere, but don't change the tests.", False),
    ],
)
def test_tests_are_changed_only_if_the_task_says_so(task: str, tests: bool) -> None:
    assert demands(task).tests == tests


@pytest.mark.parametrize(
    ("task", "failing"),
    [
        ("Make the failing test pass.", True),
        ("main.py stops with an error. Find the reason and fix it.", True),
        ("Why does start.py fail?", True),
        ("app.py doesn't start", True),
        ("Add a test for area()", False),
        ("Write hello.py", False),
    ],
)
def test_a_failure_that_a_task_speaks_of(task: str, failing: bool) -> None:
    assert demands(task).failing == failing


@pytest.mark.parametrize(
    ("task", "renames", "all_files"),
    [
        (
            "Rename the function load_file to read_settings in settings.py",
            [("load_file", "read_settings")],
            False,
        ),
        ("Rename `load()` to `read()`", [("load", "read")], False),
        ("Raise the version from 1.2.0 to 1.3.0 in all files that have it.", [("1.2.0", "1.3.0")], True),
        ("Replace 'foo' with 'bar' everywhere", [("foo", "bar")], True),
        ("In config.py, change TIMEOUT from 30 to 60.", [], False),
        ("Which files rename load to read?", [], False),
    ],
)
def test_names_that_are_replaced(task: str, renames: list[tuple[str, str]], all_files: bool) -> None:
    found = demands(task)
    assert (list(found.renames), found.all_files) == (renames, all_files)
