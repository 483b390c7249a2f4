"""Text tables keep every letter and align columns."""

from clearvit.report.text_table import render_table


def test_columns_are_aligned_and_numbers_stand_on_the_right():
    lines = render_table(
        ("model", "top-1", "note"), [("timm:vit", 81.23456, "raw"), ("b", None, "[bold]")]
    ).splitlines()
    assert lines[0].split() == ["model", "top-1", "note"]
    assert lines[1].split() == ["timm:vit", "81.23", "raw"]
    assert lines[1].index("81.23") + 5 == lines[2].index("\N{EN DASH}") + 1
    assert lines[2].endswith("[bold]")
    assert not any(line.endswith(" ") for line in lines)


def test_long_cells_are_neither_cut_nor_wrapped():
    long = "dir:" + "very-" * 100 + "long"
    lines = render_table(("model", "speed"), [(long, "1.0 [0.9, 1.1]")]).splitlines()
    assert len(lines) == 2 and long in lines[1]
    assert render_table(("model",), []) == "model"
