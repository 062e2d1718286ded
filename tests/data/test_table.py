"""The table source: which columns become what, and what is refused."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch

import shoal.data
from shoal.data.encoding import Encoding
from shoal.data.table import read_table
from shoal.errors import ConfigError, DataError

CSV = """id,age,colour,member,y
1,3,red,True,no
1,4,blue,False,yes
1,5,red,True,no
2,6,red,False,yes
2,8,blue,True,no
2,10,red,True,yes
"""


@pytest.fixture
def load(tmp_path):
    """Writes text (or a frame) to a file and loads it as a table."""

    def made(text, name="rows.csv", **settings):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(text, pd.DataFrame):
            text.to_parquet(path)
        else:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return shoal.data.load({"kind": "table", "path": str(path), "label": "y", "test": 2, **settings})

    return made


def of(data, feature):
    """The raw values of a feature, row by row."""
    return data.features[:, data.reader["features"].index(feature)].tolist()


def test_what_columns_become(load):
    data = load(CSV, ignore=["id"])
    assert data.name == "rows"
    assert data.classes == ("no", "yes")
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.reader["features"] == [
        "age",
        *("colour=blue", "colour=red", "colour=(other)"),
        *("member=False", "member=True", "member=(other)"),
    ]
    assert of(data, "age") == [3, 4, 5, 6, 8, 10]
    assert of(data, "colour=red") == [1, 0, 1, 1, 0, 1]
    assert of(data, "member=False") == [0, 1, 0, 1, 0, 0]
    assert of(data, "colour=(other)") == [0] * 6
    assert (len(data.train), len(data.test)) == (4, 2)
    assert not set(data.train.tolist()) & set(data.test.tolist())
    # Numbers have mean 0 and deviation 1 over the training rows, flags stay flags.
    x = data.batch(data.train).double().numpy()
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert x[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert set(x[:, 1:].reshape(-1).tolist()) == {0.0, 1.0}


def test_declared_columns_win(load):
    data = load(CSV, categorical=["age"], ignore=["id", "colour"])
    ages = {"3", "4", "5", "6", "8", "10"}
    known = [name for name in data.reader["features"] if name.startswith("age")]
    assert known == [f"age={age}" for age in sorted(ages & {name[4:] for name in known})] + ["age=(other)"]
    assert len(known) == 5  # four training rows
    assert not any(name.startswith("colour") for name in data.reader["features"])
    with pytest.raises(DataError, match=r"'member': 6 of 6 values are no numbers, such as 'True' in row 1"):
        load(CSV, numeric=["member"])
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [True, False, True, True], "y": list("uvuv")})
    assert of(load(frame, "rows.parquet", numeric=["b"]), "b") == [1, 0, 1, 1]
    # A grouping may be a feature too, if it is declared.
    assert "id" in load(CSV, columns=["id"], numeric=["id"]).reader["features"]
    assert "id" not in load(CSV, columns=["id"]).reader["features"]


def test_clients_and_groupings(load):
    data = load(CSV, client="id", columns=["colour"])
    assert data.columns["id"].names == ("1", "2")
    assert data.columns["id"].codes.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.columns["colour"].names == ("blue", "red")
    assert data.reader["features"][0] == "age"
    assert data.columns["id"].codes[data.test].tolist() == [0, 1]


def test_ids_have_one_name_however_they_are_written(load):
    written = "id,x,y\n7.0,1,a\n7,2,b\n10.0,3,a\n10,4,b\n"
    assert load(written, client="id").columns["id"].names == ("7", "10")
    # pandas and pyarrow make floats of integers where a value is missing: here in the label.
    frame = pd.DataFrame({"id": [7, 7, 10, 10, None], "x": range(5), "y": ["a", "b", "a", "b", None]})
    with pytest.raises(DataError, match=r"data\.client: 1 of 5 rows have no value in 'id', the first is row 5"):
        load(frame, "rows.parquet", client="id", missing_label="drop")
    assert load(frame[:4], "rows.parquet", client="id").columns["id"].names == ("7", "10")
    big = pd.DataFrame({"id": [2**60 + 1, 2**60 + 2] * 2, "x": range(4), "y": list("aabb")})
    assert load(big, "rows.parquet", client="id").columns["id"].names == (str(2**60 + 1), str(2**60 + 2))
    # Leading zeros are part of a name.
    assert load("id,x,y\n007,1,a\n007,2,b\n7,3,a\n7,4,b\n", client="id").columns["id"].names == ("007", "7")


def test_labels(load):
    rows = "x,y\n1,10\n2,9\n3,10\n4,9\n5,2\n6,2\n"
    assert load(rows).classes == ("2", "9", "10")
    assert load(rows.replace("10\n", "10.0\n")).classes == ("2", "9", "10")
    with pytest.raises(DataError, match=r"holds numbers such as 9\.5, which are no classes; .* data\.learn: values"):
        load(rows.replace(",9", ",9.5"))
    with pytest.raises(DataError, match="all rows have the label '1'; there must be two classes"):
        load("x,y\n1,1\n2,1\n3,1\n")
    gaps = "x,y\n1,a\n2,\n3,b\n4,NA\n5,a\n6,b\n"
    with pytest.raises(DataError, match=r"data\.label: 2 of 6 rows have no value in 'y', the first is row 2"):
        load(gaps)
    data = load(gaps, missing_label="drop")
    assert of(data, "x") == [1, 3, 5, 6]
    assert data.notes == ("rows without a label, left out: 2 of 6",)
    with pytest.raises(DataError, match="no row has a value in 'y'"):
        load("x,y\n1,\n2,\n", missing_label="drop")


@pytest.mark.parametrize(
    ("missing", "value"), [("mean", (1 + 2 + 6) / 3), ("median", 2), ("zero", 0)], ids=lambda v: str(v)
)
def test_missing_numbers_are_filled_from_the_training_rows(missing, value, tmp_path):
    folder = tmp_path / "split"
    folder.mkdir()
    (folder / "train.csv").write_text("x,z,y\n1,1,a\n2,1,b\n,1,a\n6,1,b\n")
    (folder / "test.csv").write_text("x,z,y\n,9,a\n1000,9,b\n")
    data = shoal.data.load(
        {"kind": "table", "path": str(folder), "label": "y", "missing": missing, "missing_indicator": True}
    )
    assert data.reader["features"] == ["x", "x=(missing)", "z"]  # z has no gaps
    assert of(data, "x") == pytest.approx([1, 2, value, 6, value, 1000])
    assert of(data, "x=(missing)") == [0, 0, 1, 0, 1, 0]
    assert data.train.tolist() == [0, 1, 2, 3]
    assert data.test.tolist() == [4, 5]
    assert data.notes == (
        "missing numbers, filled in, of 6 rows: x (2)",
        "columns with the same value in every training row: z",
    )


def test_missing_numbers_without_a_rule(load):
    text = "x,z,y\n1,1,a\n2,2,b\n,3,a\n6,nan,b\n5,5,a\n7,7,b\n"
    with pytest.raises(DataError, match="column 'x': 1 of 6 rows have no value, the first is row 3"):
        load(text)
    data = load(text, missing="drop")
    assert of(data, "x") == [1, 2, 5, 7]
    assert data.notes == ("rows that lack a number, left out: 2 of 6",)
    with pytest.raises(DataError, match="drop leaves no row"):
        load("x,z,y\n1,,a\n,2,b\n", missing="drop")
    with pytest.raises(ConfigError, match=r"missing_indicator: marks numbers that were filled in.*missing is drop"):
        load(text, missing="drop", missing_indicator=True)
    # The place in the file is named even where rows above were left out.
    with pytest.raises(DataError, match=r"infinite .* in row 4"):
        load("x,y\n1,\n2,a\n3,b\ninf,a\n", missing_label="drop")


def test_missing_and_unseen_categories(load):
    text = "c,y\nred,a\n,b\nblue,a\nred,b\n"
    data = load(text, test=1)
    assert set(data.reader["features"]) <= {"c=blue", "c=red", "c=(missing)", "c=(other)"}
    assert data.features.sum(1).tolist() == [1] * 4
    with pytest.raises(DataError, match="1 of 4 rows have no category, the first is row 2"):
        load(text, missing_category="error")


def test_a_category_of_the_test_rows_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "test.csv").write_text("c,y\ngreen,a\n,b\nred,a\n")
    (tmp_path / "s" / "train.csv").write_text("c,y\nred,a\nblue,b\n")
    data = shoal.data.load({"kind": "table", "path": str(tmp_path / "s"), "label": "y"})
    assert data.reader["features"] == ["c=blue", "c=red", "c=(other)"]
    assert data.features.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert data.notes == (
        "values of a category that no training row has, of 5 rows: c (2)",
        "1 of 3 test rows are equal, label included, to a training row",
    )
    with pytest.raises(DataError, match="2 of 5 rows have a category that no training row has, such as 'green' in row"):
        shoal.data.load({"kind": "table", "path": str(tmp_path / "s"), "label": "y", "unseen": "error"})


REFUSED = {
    "data.label: .* no column 'z'; known: age, colour": (CSV, {"label": "z"}),
    "data.client: .* no column 'ids'; did you mean 'id'": (CSV, {"client": "ids"}),
    "data.numeric: .* no column 'agge'; did you mean 'age'": (CSV, {"numeric": ["agge"]}),
    "data.ignore: .* no column 'color'; did you mean 'colour'": (CSV, {"ignore": ["color"]}),
    "data.ignore: column 'age' is named by data.numeric too": (CSV, {"numeric": ["age"], "ignore": ["age"]}),
    "data.categorical: column 'age' is named by data.numeric": (CSV, {"numeric": ["age"], "categorical": ["age"]}),
    "data.columns: column 'y' is named by data.label too": (CSV, {"columns": ["y"]}),
    "no column is left to be a feature": (CSV, {"ignore": ["age", "colour", "member", "id"]}),
    "2 categories, such as 'blue' and 'red'.*data.ignore": (CSV, {"categories_max": 1}),
    "3 of 4 values are|1 of 4 values are no numbers, such as 'x' in row 3": ("a,y\n1,u\n2,v\nx,u\n4,v\n", {}),
    "such as '1,5' in row 1; .*set data.decimal: ','": ('a,y\n"1,5",u\n"2,5",v\n"1,0",u\n', {}),
    "such as '1.5' in row 3": ('a,y\n"1,5",u\n"2,5",v\n1.5,u\n', {"decimal": ","}),
    "1 values are infinite .*first in row 2": ("a,y\n1,u\n-inf,v\n3,u\n", {}),
    "1 values are infinite .*first in row 3": ("a,y\n1,u\n2,v\n1e39,u\n", {}),
    "more than one column is called 'a'": ("a,b,a,y\n1,2,3,u\n1,2,3,v\n", {}),
    "Expected 2 columns, got 3": ("a,y\n1,u\n2,v,9\n", {}),
    "Expected 2 columns, got 1": ("a,y\n1,u\n2\n", {}),
    "the file is empty": ("", {}),
    "there is no row in it": ("a,y\n", {}),
    "cannot be read: .*UTF-?8": (b"a,y\n1,u\n2,\xff\n", {}),
    "no training row has a value, so there is no mean": (
        "a,b,y\n1,,u\n2,,v\n3,,u\n",
        {"numeric": ["b"], "missing": "mean"},
    ),
    "no column that could be a feature has a value": ("a,y\n,u\n,v\n,u\n", {}),
    "data.columns: 1 of 3 rows have no value in 'g'": ("g,a,y\n1,1,u\n,2,v\n1,3,u\n", {"columns": ["g"]}),
    "learn: values needs numbers: column 'y': 2 of 2 values are no numbers": ("a,y\n1,u\n2,v\n", {"learn": "values"}),
}


@pytest.mark.parametrize("message", REFUSED, ids=range(len(REFUSED)))
def test_refusals(load, message):
    text, settings = REFUSED[message]
    with pytest.raises((DataError, ConfigError), match=message):
        load(text, **{"test": 1, **settings})


def test_a_column_that_is_empty_or_constant_or_nameless(load):
    text = ",a,b,c,y\n0,1,,5,u\n1,2,,5,v\n2,3,NA,5,u\n3,4,,5,v\n"
    data = load(text, test=1)
    assert data.reader["features"] == ["a", "c"]
    assert data.notes == (
        "a column without a name (the index of pandas?), left out",
        "columns without a value in any training row, left out: b",
        "columns with the same value in every training row: c",
    )
    assert data.batch(data.train)[:, 1].tolist() == [0] * 3
    zero = load(text, test=1, numeric=["b"], missing="zero")
    assert of(zero, "b") == [0] * 4


def test_numbers_with_leading_zeros_are_names(load):
    text = "zip,n,code,day,y\n00012,0.5,01.11,-05,u\n12,-0,2.5,03,v\n00012,0,3.5,11,u\n90210,00,4.5,12,v\n"
    data = load(text, test=1, missing_values=["00"], missing="zero")
    names = data.reader["features"]
    assert "zip=00012" in names
    assert "n" in names  # 0.5, -0 and 0 are plain numbers; 00 is a gap here
    assert "code=01.11" in names or "code=2.5" in names
    assert data.notes[0] == (
        "columns with leading zeros, taken as names and not as numbers (data.numeric says otherwise): zip (00012), "
        "code (01.11), day (03)"
    )
    # The two ways to write twelve are two names, and further rows find them again.
    again = Encoding.from_json(data.reader).apply(pd.DataFrame({"zip": ["00012", "12"], "n": [1, 1]}))
    assert again[0, names.index("zip=00012")] == 1
    assert again[1, names.index("zip=00012")] == 0
    numeric = load(text, test=1, numeric=["zip", "code", "day", "n"])
    assert of(numeric, "zip") == [12, 12, 12, 90210]
    assert of(numeric, "day") == [-5, 3, 11, 12]
    assert not any("leading zeros" in note for note in numeric.notes)
    with pytest.raises(DataError, match="column 'zip': 3 categories"):
        load(text, test=1, categories_max=2, missing_values=["00"], missing="zero")


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        (["-1,120.68", "12.5", "3"], "such as '-1,120.68' in row 1; ',' separates thousands there: remove it"),
        (["-1,120.68", "2,012,345.5", "3,000"], "',' separates thousands there: remove it"),
        (["12.5", "1,120", "3"], "',' separates thousands there"),
        (["5", "1,120", "n/k"], "if the comma separates thousands, remove it .* set data.decimal: ','"),
        (["1,120", "2,120", "3,500"], "if the comma separates thousands, remove it .* set data.decimal: ','"),
        (["1,5", "1,120", "3"], "where the comma is the decimal mark, set data.decimal: ','"),
        (["1'120.5", "3", "4"], "separates thousands there"),
        (["1 120", "2 120", "3 120"], "' ' separates thousands there"),
        (["1.120,68", "2.500,5", "3.000,1"], "'.' separates thousands there: .*, and set data.decimal: ','"),
        (["5", "x", "1"], "mend it, list 'a' under"),
    ],
)
def test_separators_of_thousands(load, values, hint):
    rows = "".join(f"{value};{y}\n" for value, y in zip(values, "uvu", strict=True))
    with pytest.raises(DataError, match=hint):
        load("a;y\n" + rows, separator=";", test=1)


def test_thousands_beside_a_decimal_comma(load):
    with pytest.raises(DataError, match=r"'\.' separates thousands there: remove it from the numbers of the file \("):
        load("a;y\n1.120,5;u\n2,5;v\n1,0;u\n", separator=";", decimal=",", test=1)
    with pytest.raises(DataError, match="',' separates thousands there"):
        load("a;y\n-1,120.68;u\nn/k;v\n2,000.5;u\n", separator=";", test=1)
    # Texts that only look a little like it stay texts.
    data = load("a;y\n1,12;u\nno 1,120;v\nx;u\n1,12;v\n", separator=";", test=1)
    assert all(name.startswith("a=") for name in data.reader["features"])


def test_a_label_that_may_be_an_amount(load):
    def notes(count, rows, form="{}", **settings):
        text = "x,y\n" + "".join(f"{row},{form.format(row % count - 3)}\n" for row in range(rows))
        return [note for note in load(text, test=0.2, **settings).notes if "amount" in note]

    assert notes(51, 520) == [
        "the label has 51 different whole numbers, each taken as a class; if it is an amount, set data.learn: values"
    ]
    assert notes(50, 520) == []
    assert len(notes(11, 100)) == 1
    assert notes(11, 110) == []
    assert notes(10, 30) == []
    assert notes(60, 120, "c{}") == []
    assert notes(60, 120, learn="values") == []


def test_test_rows_that_are_training_rows(load, tmp_path):
    train = pd.DataFrame({"a": [0.0, 1, 2, 2], "c": ["x", "y", "x", "x"], "y": ["u", "v", "u", "u"]})
    # As it is; another label; another number; another category; new altogether; -0 is 0.
    test = pd.DataFrame({"a": [1.0, 1, 1.5, 1, 9, -0.0], "c": list("yyyxzx"), "y": list("vuvvvu")})
    (tmp_path / "s").mkdir()
    train.to_csv(tmp_path / "s" / "train.csv", index=False)
    test.to_csv(tmp_path / "s" / "test.csv", index=False)
    settings = {"kind": "table", "path": str(tmp_path / "s"), "label": "y"}
    assert "2 of 6 test rows are equal, label included, to a training row" in shoal.data.load(settings).notes
    values = shoal.data.load({**settings, "label": "a", "learn": "values", "ignore": ["c"]})
    assert "3 of 6 test rows are equal, label included, to a training row" in values.notes


def test_texts_that_mean_a_missing_value(load):
    text = "a,c,y\n1,?,u\n?,x,v\n3,x,u\n5,z,v\n"
    with pytest.raises(DataError, match=r"such as '\?' in row 2"):
        load(text)
    data = load(text, test=1, missing="zero", missing_values=["?"])
    assert of(data, "a") == [1, 0, 3, 5]
    assert not any("?" in name for name in data.reader["features"])


def test_formats(load, tmp_path):
    plain = load(CSV, ignore=["id"])
    semicolons = CSV.replace(",", ";").replace("10;", "1e1;")
    others = [
        load(b"\xef\xbb\xbf" + CSV.encode(), "bom.csv", ignore=["id"]),
        load(CSV.replace(",", "\t"), "t.tsv", ignore=["id"]),
        load(gzip.compress(CSV.encode()), "z.csv.gz", ignore=["id"]),
        load(semicolons, "s.csv", decimal=",", ignore=["id"]),
        load(CSV.replace(",", "|"), "bars.csv", separator="|", ignore=["id"]),
        load(CSV.replace("\n", "\r\n").replace(",", " , "), "spaces.csv", ignore=["id"]),
        load(pd.read_csv(tmp_path / "rows.csv"), "p.parquet", ignore=["id"]),
        load(CSV.replace("red", '"red"'), "quoted.csv", ignore=["id"]),
    ]
    for number, data in enumerate(others):
        assert (number, data.fingerprint) == (number, plain.fingerprint)
        assert data.reader["features"] == plain.reader["features"]
    assert others[2].name == "z"
    with pytest.raises(DataError, match="cannot be read"):
        load(gzip.compress(CSV.encode())[:-20], "cut.csv.gz")
    with pytest.raises(DataError, match="cannot be read"):
        load("PAR1", "cut.parquet")
    with pytest.raises(DataError, match=r"no table that can be read; known: \.csv"):
        load(CSV, "rows.xlsx")
    german = load("n;y\n1,5;a\n2,5;b\n-0,5;a\n4;b\n", "d.csv", separator=";", decimal=",")
    assert of(german, "n") == [1.5, 2.5, -0.5, 4]


def test_folders(load, tmp_path):
    def folder():
        return shoal.data.load({"kind": "table", "path": str(tmp_path / "f"), "label": "y", "client": "id"})

    load(CSV, "f/train.csv")
    (tmp_path / "f" / "test.tsv").write_text("y\tcolour\tid\tage\tmember\textra\nno\tred\t3\t1\tTrue\t9\n")
    data = folder()
    assert data.name == "f"
    # Another order of the columns shifts nothing, and a client may have test rows alone.
    assert of(data, "age") == [3, 4, 5, 6, 8, 10, 1]
    assert data.columns["id"].names == ("1", "2", "3")
    assert data.test.tolist() == [6]
    assert data.notes == (
        "columns that only the test file has, left out: extra",
        "clients without a training row: 1 of 3",
        "clients without a test row: 2 of 3",
    )
    (tmp_path / "f" / "test.tsv").write_text("y\tcolour\tid\nno\tred\t1\n")
    with pytest.raises(DataError, match=r"test.tsv: has no column 'age'"):
        folder()
    (tmp_path / "f" / "test.tsv").write_text("y\tcolour\tage\nno\tred\t1\n")
    with pytest.raises(DataError, match=r"test.tsv: has no column 'id'"):
        folder()
    (tmp_path / "f" / "test.tsv").write_text("y\tid\tage\tmember\nno\t1\t1\tTrue\n")
    assert folder().notes[0] == "a column that the test file lacks, taken as missing: colour"
    (tmp_path / "f" / "test.csv").write_text(CSV)
    with pytest.raises(DataError, match=r"test\.csv and test\.tsv could both be the test rows"):
        folder()
    (tmp_path / "f" / "train.csv").unlink()
    with pytest.raises(DataError, match=r"could both be|no train file"):
        folder()


def test_further_rows_are_read_as_the_reader_says(load, tmp_path):
    data = load(CSV, client="id", missing="mean")
    reader = json.loads(json.dumps(data.reader))
    again = Encoding.from_json(reader)
    frame = read_table(tmp_path / "rows.csv")
    assert np.array_equal(again.apply(frame), data.features.numpy())
    shuffled = frame[["member", "colour", "age"]].iloc[::-1]
    assert np.array_equal(again.apply(shuffled), data.features.numpy()[::-1])


def test_thousands_of_features(load):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 3000)), columns=[f"f{i}" for i in range(3000)]).assign(y=["a", "b"] * 25)
    data = load(frame, "wide.parquet")
    assert data.features.shape == (50, 3000)
    assert torch.equal(data.features[:, 2999], torch.from_numpy(frame["f2999"].to_numpy(np.float32)))


def test_columns_that_are_neither_numbers_nor_texts(load):
    frame = pd.DataFrame({"x": [1, 2, 3], "t": pd.to_datetime(["2024-01-01"] * 3), "y": list("aba")})
    with pytest.raises(DataError, match=r"column 't' holds dates or times; .* data.ignore"):
        load(frame, "t.parquet")
    assert load(frame, "t.parquet", ignore=["t"], test=1).reader["features"] == ["x"]
    with pytest.raises(DataError, match="column 'l' holds ndarray values"):
        load(frame.assign(l=[[1], [2], [3]]).drop(columns="t"), "l.parquet")
