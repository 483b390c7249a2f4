"""The interleaved timer, with a clock that the passes turn themselves."""

import pytest

from clearvit.timing import MIN_ROUNDS, Spread, speed_ratios, time_interleaved


class Machine:
    """A clock and passes that take a known time each."""

    def __init__(self, **seconds):
        self.now, self.order = 0.0, []
        self.passes = [lambda n=name, s=time: self.work(n, s) for name, time in seconds.items()]

    def work(self, name, seconds):
        self.order.append(name)
        self.now += seconds

    def time(self, **options):
        return time_interleaved(self.passes, clock=lambda: self.now, **options)


def test_another_pass_goes_first_in_every_round_after_one_that_warms_up():
    machine = Machine(a=1.0, b=2.0, c=4.0)
    calls = []
    times = machine.time(rounds=3, advance=lambda: calls.append(1))
    assert "".join(machine.order) == "abcbcacababc"
    assert times == [[1.0] * 3, [2.0] * 3, [4.0] * 3]
    assert len(calls) == 12


def test_no_round_begins_after_the_patience_but_some_are_always_made():
    machine = Machine(a=10.0)
    assert machine.time(rounds=9, patience=5.0) == [[10.0] * MIN_ROUNDS]
    assert len(Machine(a=1.0).time(rounds=9, patience=5.5)[0]) == 5


def test_a_rest_before_each_pass_is_not_counted(monkeypatch):
    machine, slept = Machine(a=1.0, b=2.0), []

    def sleep(seconds):
        slept.append(seconds)
        machine.now += seconds

    monkeypatch.setattr("time.sleep", sleep)
    assert machine.time(rounds=2, rest=0.5) == [[1.0] * 2, [2.0] * 2]
    assert slept == [0.5] * 6


def test_ratios_are_taken_round_by_round():
    assert speed_ratios([2.0, 4.0], [1.0, 8.0]) == [2.0, 0.5]
    with pytest.raises(ValueError):
        speed_ratios([1.0], [1.0, 2.0])
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
