"""The pages: every Python fence runs, measured tables are fresh, and each names its readers."""

import json
import re
from pathlib import Path

import pytest
import tables

from harness import records

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
AUDIENCE = re.compile(r"\bfor\b", re.IGNORECASE)


def name_of(page: Path) -> str:
    """A page's path from the top."""
    return str(page.relative_to(ROOT))


def run_fences(text: str, name: str) -> int:
    """Runs a page's Python fences in order in one namespace; errors name the page's own lines."""
    namespace = {"__name__": "__page__"}
    fences = list(FENCE.finditer(text))
    for fence in fences:
        line = text.count("\n", 0, fence.start(1))
        exec(compile("\n" * line + fence[1], name, "exec"), namespace)
    return len(fences)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("page", [p for p in PAGES if FENCE.search(p.read_text())], ids=name_of)
def test_fences_run(page: Path):
    assert run_fences(page.read_text(), name_of(page)) > 0


def test_a_broken_fence_is_noticed_with_its_line():
    text = "# Title\n\n```python\nx = 1\n```\n\n```python\n\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as caught:
        run_fences(text, "page.md")
    assert caught.traceback[-1].lineno == 8  # pytest counts from 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_first_sentence_says_who_it_is_for(page: Path):
    paragraphs = [p for p in page.read_text().split("\n\n") if p.strip() and not p.startswith("#")]
    assert AUDIENCE.search(re.split(r"(?<=[.:]) ", paragraphs[0])[0]), paragraphs[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_measured_tables_are_fresh(page: Path):
    text = page.read_text()
    assert text.count("<!-- measured:") == len(tables.BLOCK.findall(text)), "a block is not closed"
    assert tables.rewrite(text) == text, "stale: run `make tables`"


def test_front_pages_show_the_summary():
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert "<!-- measured:summary -->" in page.read_text()


def test_a_stale_table_is_noticed(tmp_path: Path):
    page = "<!-- measured:init -->\n| old |\n<!-- /measured -->\n"
    record = records.Record(
        machine={
            "processor": "p",
            "cores": 2,
            "load_before": [0.5],
            "command": "c",
            "commit": "abc",
            "date": "d",
            "python": "3",
            "versions": {"jax": "1", "jaxlib": "1"},
        },
        samples=(
            records.Sample(
                workload="init",
                arm="jit",
                n=32,
                status="ok",
                measures={"cold": 12.5, "compile": 12, "programs": 1, "hlo_instructions": 4321},
            ),
            records.Sample(workload="init", arm="per-kind", n=32, status="timeout", reason="late"),
        ),
    )
    records.save(tmp_path / "init.json", record)
    fresh = tables.rewrite(page, tmp_path)
    assert "| jax.jit(init) | 1 | 12.5 s | - | 12.0 s | - | 0 MB | 1 | 4,321 | - |" in fresh
    assert "| a jit per kind, called per site | 0 | late |" in fresh
    assert tables.rewrite(fresh, tmp_path) == fresh
    assert tables.NOT_YET in tables.rewrite(page, tmp_path / "nothing")


def test_a_table_shows_ranges_and_calls_overlap_parity(tmp_path: Path):
    def samples(arm: str, *seconds: float) -> list[records.Sample]:
        return [
            records.Sample(
                workload="chunks",
                arm=arm,
                n=8,
                status="ok",
                measures={"cold": s, "compile": s, "steady": [s / 1000], "programs": 1},
            )
            for s in seconds
        ]

    machine = tables.records.load(tables.RESULTS / "chunks.json").machine
    found = (
        *samples("loop", 40, 45, 50),
        *samples("scan-by-hand", 9, 10, 12),
        *samples("scan_chunks", 8, 9, 10),
    )
    records.save(tmp_path / "chunks.json", records.Record(machine=machine, samples=found))
    text = tables.summary(tmp_path)
    loop = "| train step of 8 chunks | Python loop | 45.0 s (40.0 to 50.0) |"
    assert loop in text
    assert "| 5.00 | - | 5.00 | - |" in text
    assert "| parity | - | parity | - |" in text
    assert "Medians of 3 samples; in brackets" in text


def test_an_unknown_block_is_an_error():
    with pytest.raises(KeyError):
        tables.rewrite("<!-- measured:nonsense -->\n<!-- /measured -->")


# Promises that the committed results miss. The README and the changelog say so; a promise leaves
# this list when a new record keeps it, and none joins it silently.
MISSED = {
    "depth.json": {
        "layers, 48 blocks: compile of fold, state packed, times less than as written",
        "layers, 96 blocks: compile of fold, state packed, as a multiple of that of nn.scan by "
        "hand, state stacked",
        "layers, 48 blocks: cold call of fold, state packed, times less than as written",
        "layers, 48 blocks: cold call of block in nn.jit, folded, state packed, times less than "
        "as written",
        "layers-wide, 24 blocks: steady run of fold, state packed, as a multiple of that of as "
        "written",
        "gaussians, 40 Gaussians: compile of fold, times less than as written",
    }
}


@pytest.mark.parametrize("file", sorted((ROOT / "bench" / "results").glob("*.json")), ids=name_of)
def test_results_are_whole_and_keep_their_promises(file: Path):
    record = records.load(file)
    assert not record.interrupted
    assert record.problems == ()
    missed = {f["name"] for f in record.figures if f["holds"] is False}
    assert missed == MISSED.get(file.name, set())
    assert json.loads(file.read_text())["machine"]["commit"] != "unknown"
