from clearvit.progress import Meter


def test_a_meter_never_passes_its_total_and_ends_there():
    told = []
    meter = Meter(lambda done, total: told.append((done, total)), 10)
    meter.advance(4)
    meter.advance(9)
    assert told == [(4, 10), (10, 10)]
    other = Meter(lambda done, total: told.append((done, total)), 3)
    other.advance(1)
    other.finish()
    assert told[-1] == (3, 3)


def test_a_meter_nobody_looks_at_counts_all_the_same():
    meter = Meter(None, 2)
    meter.advance(1)
    assert (meter.done, meter.total) == (1, 2)
