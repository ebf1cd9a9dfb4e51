"""Progress: lines in a log, a bar on a terminal, silence where asked."""

from __future__ import annotations

import io
import sys

from minblas import progress
from minblas.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(monkeypatch, stream, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("tuning", 3, **options) as bar:
        for name in ("first", "second", "third"):
            bar.step(name)
    return stream.getvalue()


def test_a_log_gets_the_last_line_and_one_now_and_then(monkeypatch):
    assert run(monkeypatch, io.StringIO()).count("\n") == 1
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    text = run(monkeypatch, io.StringIO())
    assert text.count("\n") == 3
    assert "tuning: 3/3" in text
    assert "about 0 s left; third" in text


def test_a_terminal_gets_a_bar(monkeypatch):
    assert "3/3" in run(monkeypatch, Terminal())


def test_what_is_being_done_is_shown_on_a_terminal_only(monkeypatch):
    def said(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("tuning", 2) as bar:
            bar.step("done")
            bar.say("512 x 512 x 512: verify tiled [64x64]")  # brackets are no markup
        return stream.getvalue()

    monkeypatch.setenv("COLUMNS", "200")
    assert "verify tiled [64x64]" in said(Terminal())
    assert said(io.StringIO()) == ""


def test_silence(monkeypatch):
    assert run(monkeypatch, Terminal(), show=False) == ""
