"""What a task is: classes, columns, transforms; labels that are neither dense nor numbers."""

import numpy as np
import pytest
import torch
from stream_data import images, laws

from shoal.data.arrays import from_arrays
from shoal.errors import ConfigError
from shoal.streams.tasks import TaskStream


def stream(data, heads_by_task=True, rounds=12, **changes):
    given = {"tasks": 2, "clients": 2, "order": "synchronous", **changes}
    return TaskStream(data, 3, rounds, heads_by_task, **given)


def original(s, rows):
    return sorted({s.dataset.classes[i] for i in s.dataset.labels_of(rows).tolist()})


ODD = images([3, 7, 41, 7, 41] * 8, [41, 7, 3])


def test_labels_with_gaps():
    s = stream(ODD)
    assert s.task_names == ("3, 7", "41")
    assert s.task_outputs == (2, 1)
    assert s.outputs == 2
    laws(s, 4)
    assert original(s, s.targets(1)[0].test) == ["3", "7"]
    assert original(s, s.holding(0, 7).train) == ["41"]
    assert s.dataset.wanted(s.targets(1)[0].test).tolist() == [1, 0]  # of 7 and 3, in the order of the rows
    assert set(s.dataset.wanted(s.holding(0, 7).train).tolist()) == {0}
    # One head: the global labels 0..2.
    shared = stream(ODD, heads_by_task=False)
    assert set(shared.dataset.wanted(shared.holding(0, 7).train).tolist()) == {2}


def test_explicit_groups_in_original_labels_and_in_their_own_order():
    s = stream(ODD, classes=[[41, "3"], [7]])
    assert s.task_names == ("41, 3", "7")
    assert s.task_classes == ((2, 0), (1,))
    rows = s.targets(1)[0].test
    assert [ODD.classes[i] for i in ODD.labels[rows].tolist()] == ["41", "3"]
    assert s.dataset.wanted(rows).tolist() == [0, 1]
    assert stream(ODD, classes=[[41], [7]]).notes() == [
        "training rows of no task, because stream.classes leaves their labels out: 8"
    ]


def test_a_second_task_with_a_new_label():
    """The second source brings label 0, which is smaller than all labels before it, and a task of its own."""
    labels = [3, 7, 41] * 10 + [0, 3] * 15
    sources = ["old"] * 30 + ["new"] * 30
    data = images(labels, [3, 0], {"source": [*sources, "old", "new"]})
    s = stream(data, by="source", clients=3)
    assert s.task_names == ("new", "old")  # alphabetical
    assert s.task_outputs == (2, 3)
    laws(s, 12)
    new = torch.cat([s.cell(c, 0)[0] for c in range(3)])
    assert original(s, new) == ["0", "3"]
    assert set(s.dataset.wanted(new).tolist()) == {0, 1}
    old = torch.cat([s.cell(c, 1)[0] for c in range(3)])
    by_name = {s.dataset.classes[int(s.dataset.labels[r])]: int(s.dataset.wanted(r[None])) for r in old}
    assert by_name == {"3": 0, "7": 1, "41": 2}
    assert dict(s.holding(0, 1).truth) == {"task": 0, "phase": 0, "domain": "new"}


def test_a_label_that_only_the_test_rows_of_a_domain_have():
    data = images([0, 1, 2, 0], [1, 1], {"domain": ["a", "b", "b", "a", "a", "b"]})
    s = stream(data, by="domain", clients=1, validation=0)
    assert s.task_outputs == (2, 2)
    assert s.dataset.wanted(s.targets(1)[0].test).tolist() == [1]
    assert s.dataset.wanted(s.cell(0, 0)[0]).tolist() == [0, 0]


def test_strings():
    words = ["wolf", "ant", "bee", "cat", "dog"] * 6
    s = stream(images(words, ["ant", "wolf"]), classes=[["wolf", "ant"], ["bee"]])
    assert s.task_names == ("wolf, ant", "bee")
    assert s.dataset.wanted(s.targets(1)[0].test).tolist() == [1, 0]
    s = stream(images(words, words[:5]))
    # Neighbours in the order of the classes: three, then two.
    assert s.task_names == ("ant, bee, cat", "dog, wolf")
    with pytest.raises(ConfigError, match="no label 'wulf'; did you mean 'wolf'"):
        stream(images(words), classes=[["wulf"], ["bee"]])


def test_numbers_name_the_classes_of_a_source_with_names():
    s = stream(images(["ant", "bee", "cat", "dog"] * 5), classes=[[0, 3], ["bee"]])
    assert s.task_names == ("ant, dog", "bee")


def test_more_classes_than_fit_evenly():
    data = images(list(range(10)) * 3)
    s = stream(data, tasks=4)
    assert s.task_outputs == (3, 3, 2, 2)
    assert (s.outputs, s.task_names[0]) == (3, "0, 1, 2")
    assert stream(data, tasks=2).task_names == ("0 to 4", "5 to 9")
    with pytest.raises(ConfigError, match="11 tasks out of 10 classes"):
        stream(data, tasks=11)


def test_shuffled_classes():
    data = images(list(range(10)) * 3)
    s = stream(data, tasks=5, shuffle_classes=True)
    groups = [tuple(sorted(group)) for group in s.task_classes]
    assert sorted(sum(s.task_classes, ())) == list(range(10))
    assert groups != [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert s.task_classes == stream(data, tasks=5, shuffle_classes=True).task_classes
    other = TaskStream(data, 4, 12, True, tasks=5, clients=2, shuffle_classes=True)
    assert s.task_classes != other.task_classes
    for t, group in enumerate(s.task_classes):
        # Labels of the head follow the order in which the task lists its classes, which is what its name says.
        assert s.task_names[t] == ", ".join(data.classes[i] for i in group)
        rows = s.targets(1)[t].test
        assert s.dataset.wanted(rows).tolist() == [group.index(y) for y in data.labels[rows].tolist()]


def test_columns_with_more_values_than_tasks():
    data = images([0, 1] * 20, [0, 1], {"site": [str(i % 5) for i in range(40)] + ["0", "1"]})
    s = stream(data, by="site", tasks=2)
    assert s.task_names == ("0, 1, 2", "3, 4")
    assert s.task_outputs == (2, 2)
    with pytest.raises(ConfigError, match="6 tasks out of 5 values of 'site'"):
        stream(data, by="site", tasks=6)
    with pytest.raises(ConfigError, match="no column 'sight'; did you mean 'site'"):
        stream(data, by="sight")


def test_transforms():
    data = images([0, 1, 2] * 10, [0, 1, 2])
    five = stream(data, by="transform", tasks=5)
    assert five.task_names == ("identity", "rotate90", "rotate180", "rotate270", "mirror")
    assert stream(data, by="transform", tasks=6).task_names[-1] == "invert"
    assert five.task_outputs == (3,) * 5
    for t, target in enumerate(five.targets(1)):
        assert (target.test % len(data)).tolist() == data.test.tolist()
        assert set((target.test // len(data)).tolist()) == {t}
        assert five.dataset.wanted(target.test).tolist() == [0, 1, 2]
    x, y = (five.dataset.batch(five.targets(1)[t].test) for t in (0, 1))
    assert np.array_equal(np.rot90(x.numpy(), axes=(1, 2)), y.numpy())
    # Nothing is copied.
    assert five.dataset.features is data.features
    with pytest.raises(ConfigError, match="there are 6 transforms, 7 tasks"):
        stream(data, by="transform", tasks=7)
    with pytest.raises(ConfigError, match="needs 2 different transforms"):
        stream(data, by="transform", transforms=["mirror"])
    with pytest.raises(ConfigError, match="needs 2 different transforms"):
        stream(data, by="transform", transforms=["mirror", "mirror"])
    with pytest.raises(ConfigError, match="under transforms already"):
        stream(data.with_transforms("mirror"), by="transform")
    with pytest.raises(ConfigError, match="needs images"):
        stream(from_arrays(np.eye(20), [0, 1] * 10), by="transform")
    with pytest.raises(ConfigError, match="square images"):
        stream(images([0, 1] * 5, shape=(4, 6)), by="transform")


def test_a_task_without_rows_is_told():
    data = images(["a", "b"] * 5, ["a", "c"])
    notes = stream(data, tasks=3).notes()
    assert "task 1 (b): there is no test row" in notes
    assert "task 2 (c): there is no training row" in notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": [[3]]}, "one list of labels for each of 2 tasks"),
        ({"classes": [[3], []]}, "none empty"),
        ({"classes": [[3, 7], [7]]}, "given more than once: 7"),
        ({"classes": [[3, 3], [7]]}, "given more than once: 3"),
        ({"classes": [[0], [7]]}, "no label 0"),
        ({"classes": [[3], [7]], "shuffle_classes": True}, "nothing to shuffle"),
        ({"classes": [[3], [7]], "by": "transform"}, "belongs to by: class"),
        ({"shuffle_classes": True, "by": "transform"}, "belongs to by: class"),
        ({"transforms": ["mirror", "invert"]}, "belongs to by: transform"),
    ],
)
def test_settings_that_contradict(settings, message):
    with pytest.raises(ConfigError, match=message):
        stream(ODD, **settings)
