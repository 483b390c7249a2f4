import torch

from clearvit.finetuning.judgement import RAW, best_candidate, judge_parts, split_groups


def part(raw, first, second):
    return {
        RAW: torch.full((2, 2), raw, dtype=torch.float64),
        1: torch.full((2, 2), first, dtype=torch.float64),
        2: torch.full((2, 2), second, dtype=torch.float64),
    }


def test_no_part_judges_what_it_chose():
    """Each part likes another candidate: chosen by the others, both are worse than raw."""
    parts = [part(0.5, 0.9, 0.1), part(0.5, 0.1, 0.8)]
    report = judge_parts(parts, ("P@1", "MAP@R"), "classes", 10)
    assert report.before["P@1"] == 0.5
    assert abs(report.after["P@1"] - 0.1) < 1e-9 and not report.better


def test_a_gain_that_all_parts_agree_on_is_found():
    parts = [part(0.5, 0.7, 0.6), part(0.4, 0.65, 0.5), part(0.45, 0.6, 0.5)]
    report = judge_parts(parts, ("P@1", "MAP@R"), "classes", 10)
    assert report.better and report.chosen == 1 and report.groups == 6
    assert "epoch 1" in str(report) and report.change["P@1"][1] > 0


def test_the_earliest_of_equals_is_chosen_so_that_raw_stays():
    parts = [part(0.5, 0.5, 0.5)]
    assert best_candidate(parts, [RAW, 1, 2]) == RAW
    report = judge_parts([part(0.5, 0.5, 0.5)] * 2, ("P@1", "MAP@R"), "classes", 10)
    assert report.chosen == RAW and not report.better


def test_groups_are_dealt_in_turn():
    assert split_groups(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
