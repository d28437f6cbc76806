"""The report of `anyxpu bench models`: what the page and the CSV files say is what the rows say."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anyxpu.bench.models import page
from anyxpu.cli import app


def row(model: str, status: str = "pass", speed: float | None = 1.5, **fields: Any) -> dict[str, Any]:
    made = {"suite": "hf", "model": model, "mode": "inference", "dtype": "f32", "status": status, "batch_size": 2}
    if speed is not None:
        made |= {
            "times": {"xpu compiled": {"median_ms": 12.5, "spread": 0.1}},
            "speedup_over_cpu_inductor": speed,
            "speedup_over_cpu_eager": 2.0,
            "speedup_over_xpu_eager": 3.0,
            "cold_compile_s": 4.0,
            "cold_compile_s_inductor": 5.0,
            "peak_memory_bytes": 1 << 20,
            "eager_peak_memory_bytes": 3 << 20,
            "host_operators": 0,
            "graph_breaks": 1,
        }
    return made | fields


def written(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": {"cpu": "<a & b>"}, "versions": {"torch": "2.13"}, "rows": list(rows)}))
    return path


class Words(HTMLParser):
    """The page's text, and how deep its elements are nested at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.open, self.elsewhere = "", 0, []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += tag not in ("meta", "br", "img", "link")
        self.elsewhere += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self.open -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def read(folder: Path) -> Words:
    words = Words()
    words.feed((folder / "index.html").read_text())
    assert words.open == 0
    assert not words.elsewhere, "the page is to hold all it needs"
    return words


def test_the_page_says_what_the_rows_say(tmp_path: Path) -> None:
    log = "Traceback <module>\nboom & more"
    file = written(
        tmp_path, "run", row("fast", speed=2.0), row("slow", speed=0.5), row("bad", "crashed", None, log=log)
    )
    done = CliRunner().invoke(app, ["bench", "report", str(file), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    words = read(tmp_path / "out")
    assert "2 of 3" in words.text
    assert "1.00\N{MULTIPLICATION SIGN}" in words.text  # the geometric mean of 2 and 0.5
    assert "<a & b>" in words.text and log in words.text
    assert words.text.index("fast") < words.text.index("slow")


def test_runs_are_merged_and_the_later_counts(tmp_path: Path) -> None:
    first = written(tmp_path, "first", row("a", "timeout", None), row("b"))
    second = written(tmp_path, "second", row("a", speed=4.0))
    rows = page.merge([page.read(first), page.read(second)])
    assert [(r["model"], r["status"]) for r in rows] == [("a", "pass"), ("b", "pass")]


def test_csv_files_have_the_dashboards_columns(tmp_path: Path) -> None:
    file = written(tmp_path, "run", row("good"), row("bad", "fail_accuracy", None))
    page.write([page.read(file)], tmp_path / "out")
    with (tmp_path / "out" / "inductor_hf_f32_inference_xpu_accuracy.csv").open() as text:
        accuracy = list(csv.DictReader(text))
    with (tmp_path / "out" / "inductor_hf_f32_inference_xpu_performance.csv").open() as text:
        (performance,) = csv.DictReader(text)
    assert {r["name"]: r["accuracy"] for r in accuracy} == {"good": "pass", "bad": "fail_accuracy"}
    assert (performance["dev"], performance["name"], performance["batch_size"]) == ("xpu", "good", "2")
    assert float(performance["speedup"]) == 3.0
    assert float(performance["abs_latency"]) == 12.5
    assert float(performance["compilation_latency"]) == 4.0
    assert float(performance["compression_ratio"]) == 3.0


@pytest.mark.parametrize(
    ("now", "status", "said"),
    [
        (row("m", speed=1.0), 1, "1.00 times CPU Inductor, 1.50 before"),
        (row("m", "fail_accuracy", 1.5), 1, "fail_accuracy, was right before"),
        (row("m", speed=1.4), 0, ""),
        (row("m", speed=3.0), 0, ""),
    ],
)
def test_what_is_worse_than_before_is_said(tmp_path: Path, now: dict[str, Any], status: int, said: str) -> None:
    before, after = written(tmp_path, "before", row("m"), row("gone")), written(tmp_path, "after", now, row("new"))
    words = ["bench", "report", str(after), "-o", str(tmp_path / "out"), "--baseline", str(before)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    assert said in done.output
    assert "Beside before" in read(tmp_path / "out").text


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("[1]")
    done = CliRunner().invoke(app, ["bench", "report", str(file), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "is no result of `anyxpu bench models`" in done.output


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed (apt-get install chromium)")
def test_a_browser_shows_it_on_a_phone(tmp_path: Path) -> None:
    rows = [row(f"Model{i}ForSomethingWithALongName", speed=0.3 * i + 0.2) for i in range(8)]
    page.write([page.read(written(tmp_path, "run", *rows))], tmp_path / "out")
    probe = (
        (tmp_path / "out" / "index.html")
        .read_text()
        .replace(
            "</body>",
            "<script>document.title = [document.documentElement.scrollWidth <= innerWidth, "
            "[...document.querySelectorAll('.bar')].filter(b => b.getBoundingClientRect().width > 1).length].join()"
            "</script></body>",
        )
    )
    (tmp_path / "probe.html").write_text(probe)
    shown = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,900", "--dump-dom",
         (tmp_path / "probe.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "<title>true,32</title>" in shown.stdout, shown.stdout[:600]
