"""The tables that say who holds what when."""

from stream_data import images

from shoal.streams.describe import class_counts, describe, phase_table, round_table, task_table
from shoal.streams.partitions import Draw, Sizes
from shoal.streams.static import StaticStream
from shoal.streams.tasks import TaskStream

DATA = images([3, 7, 41, 41] * 10, [3, 7, 41])


def test_counts_of_a_static_stream():
    stream = StaticStream(DATA, 0, 1, clients=3, partition=Sizes(sizes=[40, 0, 0]))
    table = class_counts(stream)
    assert table.columns == ("label", "client 0", "client 1", "client 2")
    assert table.rows == [("3", "10", "0", "0"), ("7", "10", "0", "0"), ("41", "20", "0", "0"), ("all", "40", "0", "0")]
    assert table.note == ""
    assert describe(stream, 1) == [table]


def test_many_clients_are_capped():
    table = class_counts(StaticStream(DATA, 0, 1, clients=1_000_000, partition=Draw(rows=4)), clients=2)
    assert len(table.columns) == 3
    assert table.note == "clients not shown: 999998"


def test_phases_of_a_synchronous_stream():
    stream = TaskStream(DATA, 0, 5, True, tasks=2, order="synchronous", clients=2, validation=0.2)
    table = phase_table(stream)
    assert table.rows == [
        ("0", "1 to 3", "0", "0 (3, 7)", "8", "2", "3, 7"),
        ("0", "1 to 3", "1", "0 (3, 7)", "8", "2", "3, 7"),
        ("1", "4 to the end", "0", "1 (41)", "8", "2", "41"),
        ("1", "4 to the end", "1", "1 (41)", "8", "2", "41"),
    ]
    assert len(phase_table(stream, clients=1).rows) == 2
    assert phase_table(stream, clients=1, most=1).note == "clients not shown: 1; phases not shown: 1"
    assert [t.title for t in describe(stream, 5)] == ["Tasks (head: task)", "Who holds what"]


def test_tasks_of_a_stream():
    own = TaskStream(DATA, 0, 4, True, tasks=2, clients=2, validation=0.2)
    assert task_table(own).rows == [("0", "3, 7", "2", "4", "3, 7", "2"), ("1", "41", "1", "4", "41", "1")]
    shared = TaskStream(DATA, 0, 4, False, tasks=2, clients=2)
    assert [row[-1] for row in task_table(shared).rows] == ["3", "3"]


def test_a_multi_task_stream_is_random_each_round():
    stream = TaskStream(DATA, 0, 40, False, tasks=2, order="multi-task", clients=3, validation=0)
    tables = describe(stream, 40, clients=2)
    assert [t.title for t in tables] == ["Tasks (head: shared)", "Who holds what", "Tasks by round (a sample)"]
    assert tables[1].rows[0] == ("all", "all", "0", "random each round", "7", "0", "3, 7, 41")
    assert tables[1].note == "clients not shown: 1"
    sample = round_table(stream, 40, 2)
    assert sample.columns[1] == "round 1"
    assert sample.columns[-1] == "round 40"
    shown = [int(name.split()[1]) for name in sample.columns[1:]]
    assert sample.rows[1] == ("1", *(str(stream.holding(1, r).task) for r in shown))
    assert len(round_table(stream, 2).columns) == 3
