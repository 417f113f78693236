"""The streaming reader: every form of the format, windows of any size, and one clear sentence for every bad file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_cases import header, span, training, write

from knockgraph.errors import FileFormatError
from knockgraph.traces.stream import TraceStream

EVENTS = [span("aten::mm", 1, 2), span('a "quoted" name\\', 5, 1, note="µ → 日本", deep=[[1, [2]], {"x": None}])]


def texts(value: Any) -> Any:
    """As the stream gives it: numbers with a point stay text."""
    return json.loads(json.dumps(value), parse_float=str)


@pytest.fixture(params=[1, 7, 64, 1 << 20])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("knockgraph.traces.stream.CHUNK", request.param)
    return int(request.param)


@pytest.mark.parametrize("last", [True, False], ids=["header first", "header last"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.weird"])
def test_object_form(tmp_path: Path, window: int, last: bool, name: str) -> None:
    stream = TraceStream(write(tmp_path / name, EVENTS, header(number=12345.5), last))
    assert list(stream) == texts(EVENTS)
    assert stream.header == texts(header(number=12345.5))
    assert stream.events == 2


def test_bare_array(tmp_path: Path, window: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS))
    assert list(TraceStream(path)) == texts(EVENTS)


@pytest.mark.parametrize("end", ["", ",", " , \n"])
def test_bare_array_may_lack_its_bracket(tmp_path: Path, window: int, end: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS)[:-1] + end)
    stream = TraceStream(path)
    assert list(stream) == texts(EVENTS)
    assert not stream.closed


def test_byte_order_mark_and_control_characters(tmp_path: Path, window: int) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'\xef\xbb\xbf{"traceEvents": [{"name": "tab\there \xff"}]}')
    assert list(TraceStream(path)) == [{"name": "tab\there \ufffd"}]


def test_what_is_no_object_among_the_events_is_passed_over(tmp_path: Path, window: int) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [1, null, {"a": 1}, "text", 2.5, {"b": 2}, [3]], "x": 1}')
    assert list(TraceStream(path)) == [{"a": 1}, {"b": 2}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    before=objects,
    events=st.lists(objects, max_size=6),
    after=objects,
    chunk=st.integers(1, 60),
    indent=st.sampled_from([None, 0, 2]),
)
def test_equals_json_load(
    tmp_path_factory: pytest.TempPathFactory, before: Any, events: Any, after: Any, chunk: int, indent: Any
) -> None:
    before, after = ({k: v for k, v in fields.items() if k != "traceEvents"} for fields in (before, after))
    path = tmp_path_factory.mktemp("t") / "t.json"
    path.write_text(json.dumps({**before, "traceEvents": events, **after}, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("knockgraph.traces.stream.CHUNK", chunk)
        stream = TraceStream(path)
        assert list(stream) == texts(events)
        assert stream.header == texts({**before, **after})


def test_window_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.traces.stream.CHUNK", 1000)
    stream = TraceStream(write(tmp_path / "t.json", training(50)))
    largest = 0
    for _ in stream:
        largest = max(largest, len(stream._text))
    assert stream.read_characters > 200_000
    assert largest < 3000


# ------------------------------------------------------------------------------------------------- what cannot be read


def message(path: Path) -> str:
    with pytest.raises(FileFormatError) as caught:
        list(TraceStream(path))
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_truncated_anywhere(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.traces.stream.CHUNK", chunk)
    text = json.dumps({**header(), "traceEvents": EVENTS, "traceName": "x"}, indent=1)
    path = tmp_path / "t.json"
    for end in range(1, len(text)):
        path.write_text(text[:end])
        assert "is truncated: it ends after" in message(path), text[:end]


def test_truncated_array_inside_an_event(tmp_path: Path) -> None:
    whole = json.dumps(EVENTS)
    first = len(json.dumps(EVENTS[0])) + 1
    path = tmp_path / "t.json"
    for end in (5, first - 1, first + 3, len(whole) - 2):
        path.write_text(whole[:end])
        assert "is truncated" in message(path)


def test_truncated_message_says_where_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X"}, {"ph": "X", "na')
    with pytest.raises(
        FileFormatError,
        match=r"t\.json is truncated: it ends after 45 characters, within event 2; the program was stopped while it "
        r"wrote the trace, record the trace again, or copy it again from its origin$",
    ):
        list(TraceStream(path))


def test_gzip_truncated_or_damaged_anywhere(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"traceEvents": training(3)}).encode())
    path = tmp_path / "t.json.gz"
    for end in range(3, len(whole), 37):
        path.write_bytes(whole[:end])
        assert "is truncated: its gzip stream ends after" in message(path)
    damaged = 0
    for place in range(30, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        damaged += "is a damaged gzip file" in message(path)
    assert damaged > 5


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"t is empty: no trace was written to it; record the trace again"),
        (b" \n ", r"t is empty"),
        (
            b"hello, world",
            r"t is not a chrome trace, it starts with 'hello, world'; give a file that torch\.profiler's",
        ),
        (b"PK\x03\x04zip", r"t is not a chrome trace"),
        (b'{"a": 1, "b": []}', r"t is JSON without a list 'traceEvents' \(its fields: a, b\); give a file"),
        (b"{}", r"without a list 'traceEvents' \(its fields: none\)"),
        (b'{"traceEvents": 5}', r"without a list 'traceEvents' \(its fields: traceEvents\)"),
        (
            b'{"traceEvents": [{"a": 1} {"b": 2}]}',
            r"not valid JSON at character 26: ',' or '\]' is expected, '\{' found",
        ),
        (b'{"traceEvents": [{"a": 1}, {b: 2}' + b" " * 50, r"at character 28: in event 2, expecting property name"),
        (b'{"traceEvents": [{"a": tru}, {}]  ' + b" " * 50, r"at character 23: in event 1, expecting value"),
        (b'{"traceEvents": []} {', r"at character 20: something follows the end of the trace, '\{'"),
        (b'{"a" 5, "traceEvents": []}', r"':' is expected, '5' found"),
        (b'{5: 5, "traceEvents": []}', r"a field has the name 5"),
        (b'{"traceEvents": [{"a": ' + b"9" * 5000 + b"}]}", r"at character 17: in event 1, Exceeds the limit"),
        (b"[" * 200_000, r"is nested too deeply|is truncated"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=match):
        list(TraceStream(path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*none\.json: there is no such file"):
        list(TraceStream(tmp_path / "none.json"))
    with pytest.raises(FileFormatError, match=r"it is a folder; give the trace files in it"):
        list(TraceStream(tmp_path))


def test_a_value_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.traces.stream.CHUNK", 100)
    monkeypatch.setattr("knockgraph.traces.stream.LONGEST", 5_000)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"name": "' + "x" * 100_000)
    stream = TraceStream(path)
    with pytest.raises(FileFormatError, match=r"event 1 does not end within 5,000 characters"):
        list(stream)
    assert stream.read_characters < 15_000
