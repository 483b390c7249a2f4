import threading

import pytest

from clearvit import progress as module
from clearvit.progress import Meter, is_main_process, log_progress, log_that_moves, show_progress


def test_a_meter_never_passes_its_total_and_ends_there():
    calls = []
    meter = Meter(lambda *call: calls.append(call), 10, "views")
    meter.advance(4)
    meter.advance(9)
    assert calls == [("views", 4, 10), ("views", 10, 10)]
    other = Meter(lambda *call: calls.append(call), 3)
    other.advance()
    other.finish()
    assert calls[-1] == ("images", 3, 3)


def test_a_meter_without_a_callback_counts_all_the_same():
    meter = Meter(None, 2)
    meter.advance()
    assert (meter.done, meter.total) == (1, 2)


def test_a_log_moves_within_half_a_minute_and_gives_messages_at_once():
    lines, now = [], [0.0]
    progress = log_progress(lines.append, lambda: now[0])
    for second in range(0, 100, 10):
        now[0] = float(second)
        progress("images", second, 100, "fine")
    estimate, *rest = lines
    assert estimate == "images: about 2 minutes to go"
    assert rest == [f"images: {n}/100 (fine)" for n in (20, 40, 60, 80)]
    progress("images", 0, 0, "a message")
    assert lines[-1] == "a message"


def test_a_log_moves_while_one_batch_takes_long(monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.0)
    lines, moved = [], threading.Event()

    def write(text):
        lines.append(text)
        moved.set()

    with log_that_moves(write, tick=0.001) as progress:
        assert moved.wait(60) and lines[0] == "still working"  # before the first stage, imports
        progress("images", 4, 56)
        while lines[-1] != "images: 4/56, still working":
            moved.clear()
            assert moved.wait(60)
    assert not [one for one in threading.enumerate() if one.name == "clearvit log"]


def test_short_work_gets_no_estimate():
    lines, now = [], [0.0]
    progress = log_progress(lines.append, lambda: now[0])
    for second in range(0, 20):
        now[0] = float(second)
        progress("images", second, 20)
    assert lines == []


def test_the_last_step_of_a_stage_that_was_seen_is_logged():
    lines, now = [], [0.0]
    progress = log_progress(lines.append, lambda: now[0])
    for done, second in ((1, 31.0), (2, 32.0)):
        now[0] = second
        progress("epochs", done, 2)
    assert lines == ["epochs: 1/2", "epochs: 2/2"]


@pytest.mark.parametrize("name, value", [("RANK", "1"), ("CLEARVIT_PROGRESS", "0")])
def test_other_processes_and_quiet_runs_say_nothing(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    with show_progress() as progress:
        progress("images", 0, 0, "a message")
    assert capsys.readouterr() == ("", "")
    assert is_main_process() == (name != "RANK")


def test_without_a_terminal_messages_are_lines_of_the_error_stream(monkeypatch, capsys):
    monkeypatch.delenv("CLEARVIT_PROGRESS", raising=False)
    with show_progress() as progress:
        progress("images", 1, 2)
        progress("images", 0, 0, "a message")
    assert capsys.readouterr() == ("", "a message\n")


def test_bars_show_stages_and_messages(capsys):
    with module._bars() as progress:
        progress("images", 1, 2, "[note]")
        progress("images", 0, 0, "a [message]")
    assert "a [message]" in capsys.readouterr().err
