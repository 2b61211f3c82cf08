"""The docs are true: every Python block and every `qdfm` command in them runs, and every link leads somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdfm.algorithms import ALGORITHMS
from qdfm.cli import USAGE, main
from qdfm.data.builtin import GENERATORS
from qdfm.envs.registry import ENVIRONMENTS
from qdfm.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SHELL = ("bash", "console", "sh", "shell")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Language, text and first line of every fenced block."""
    text = page.read_text()
    return [(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in BLOCK.finditer(text)]


def commands(text: str) -> list[str]:
    return [line.removeprefix("$ ").strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture
def registries() -> Iterator[None]:
    """A page may register things; the other tests must not see them."""
    before = [(registry, dict(registry)) for registry in (ALGORITHMS, GENERATORS, ENVIRONMENTS, EXPERIMENTS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pages
def test_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDFM_DATA", raising=False)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    namespace = {"__name__": "__main__"}
    for language, text, line in blocks(page):
        if language == "python":
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
        elif language in SHELL:
            for command in commands(text):
                if command.startswith("qdfm "):
                    assert main(shlex.split(command)[1:]) == 0, f"{page.name}: {command}"


@pages
def test_every_other_command_is_one_that_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    for language, text, _ in blocks(page):
        for command in commands(text) if language in SHELL else []:
            program, *words = shlex.split(command)
            assert program in ("qdfm", "make", "pip"), command
            if program == "make":  # not run: the tests run inside one of them
                assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words), command


@pages
def test_every_block_names_its_language(page):
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))
    assert {language for language, _, _ in blocks(page)} <= {"python", "text", *SHELL}


@pages
def test_every_relative_link_leads_to_a_file(page):
    for target in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).is_file(), target


def test_the_pages_link_to_each_other():
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


def test_the_readme_shows_the_usage_of_the_command_line():
    assert USAGE.rsplit("\n\n", 1)[0] in (ROOT / "README.md").read_text()
