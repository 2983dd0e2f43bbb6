"""``plan shapes`` shows the choice and writes what ``prewarm`` reads."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from client.buckets import parse_shapes

HISTOGRAM = "length,count\n" + "".join(f"{length},{1 + length % 7}\n" for length in range(3, 300, 3))


@pytest.fixture
def requests(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text(HISTOGRAM)
    return str(path)


def test_the_table_has_a_line_for_each_number_of_graphs_and_marks_one(alone, requests):
    ran = alone.run("plan", "shapes", requests, "--buckets", "3", "--multiple-of", "16")
    rows = [line.split("\t") for line in ran.stdout.splitlines()[1:]]
    assert [row[1] for row in rows] == [str(number) for number in range(1, 17)]
    assert [row[1] for row in rows if row[0] == ">"] == ["3"]
    assert float(rows[0][2].rstrip("%")) > float(rows[5][2].rstrip("%"))
    assert ran.status == 0


def test_what_is_written_is_what_prewarm_reads(alone, requests, tmp_path):
    output, picture = tmp_path / "buckets.json", tmp_path / "buckets.svg"
    ran = alone.run(
        "plan", "shapes", requests, "--max-waste", "0.2", "-o", str(output), "--picture", str(picture), "--json"
    )
    shapes = parse_shapes(output.read_text(), str(output))
    assert [list(shape) for shape in shapes] == [[bucket] for bucket in ran.json["buckets"]]
    assert ran.json["waste"] <= 0.2
    fewer = next(c for c in ran.json["choices"] if len(c["buckets"]) == len(shapes) - 1)
    assert fewer["waste"] > 0.2
    texts = [node.text for node in ET.fromstring(picture.read_text()).iter() if node.tag.endswith("text")]  # noqa: S314 - our own file
    assert {str(bucket) for bucket in ran.json["buckets"]} <= set(texts)


def test_a_histogram_may_come_through_a_pipe(alone):
    assert alone.run("plan", "shapes", "-", "-k", "1", "--json", text="5,1\n7,1\n").json["buckets"] == [7]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nowhere.csv",), "the histogram nowhere.csv cannot be read"),
        (("-", "-k", "2", "--max-waste", "0.1"), "give one of them"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(alone, words, reason):
    ran = alone.run("plan", "shapes", *words, text="5,1\n")
    assert (ran.status, ran.stderr.count("\n")) == (2, 1)
    assert reason in ran.stderr
