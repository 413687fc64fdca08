"""Named files to training data: what is taken out, and that it is counted."""

import dataclasses
import pathlib

import ml_collections
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import tfds_records
from prm_jax.datasets import validation
from prm_jax.records import array_record
from prm_jax.records import jsonl
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import files
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import train_run_config

pytestmark = pytest.mark.usefixtures("printed_log")


def _solution(problem, steps=("a",), **fields):
  id_ = f"{problem}/{'/'.join(steps)}/{fields.get('outcome')}"
  labels = fields.pop("labels", (1.0,) * len(steps))
  return schema.Solution(id_, problem, steps, labels=labels, **fields)


def _write(path, solutions):
  rows = [jsonl.record_from_solution(s) for s in solutions]
  for i, row in enumerate(rows):
    row["id"] = str(i)
  files.write_records(path, rows)
  return f"jsonl:{path}"


def _problems(solutions):
  return [s.problem for s in solutions]


def test_equal_rows_count_once_and_are_counted(tmp_path, capsys):
  a = _solution("p")
  rows = [
    a,
    a,
    _solution("p", ("b",)),
    _solution("p", labels=(0.0,)),
    _solution("p", outcome=True),
    a,
  ]
  source = _write(tmp_path / "a.jsonl", rows)
  other = _write(tmp_path / "b.jsonl", [a, _solution("q")])
  found = sources_lib.load(sources_lib.CorpusConfig((source, other)))
  assert len(found.train) == 5
  said = capsys.readouterr().out
  assert f"{source}: 6 solutions\n" in said
  assert "taken out of training: 3 equal solutions\n" in said
  both = sources_lib.CorpusConfig((source, other), deduplicate=False)
  assert len(sources_lib.load(both).train) == 8
  assert "taken out" not in capsys.readouterr().out


def test_equal_turns_after_other_results_are_no_equal_rows(tmp_path):
  call = dict(function=dict(name="sql", arguments={}))
  asked = [
    dict(role="user", content="How many?"),
    dict(role="assistant", content="", tool_calls=[call]),
  ]
  rows = [
    messages.trajectory([*asked, dict(role="tool", content=x)]) for x in "121"
  ]
  source = _write(tmp_path / "a.jsonl", rows)
  found = sources_lib.load(sources_lib.CorpusConfig((source,)))
  assert [x.messages[2].text for x in found.train] == ["1", "2"]


HEARD = dict(
  tools=dict(tools=({"name": "sql"},)),
  thinking=dict(reasoning_content="Hm."),
  call=dict(tool_calls=[dict(function=dict(name="sql", arguments={}))]),
  arguments=dict(
    tool_calls=[dict(function=dict(name="f", arguments={"a": 1}))]
  ),
  after=dict(after="Thanks."),
)


@pytest.mark.parametrize("name", HEARD)
def test_training_and_the_doctor_take_the_same_trajectories_for_equal(
  name, tmp_path
):
  """Another tool, thought, call or later message makes another trajectory."""

  def made(id_, call_id, tools=(), after=None, **fields):
    calls = [dict(id=call_id, function=dict(name="f", arguments={}))]
    turn = dict(role="assistant", content="", tool_calls=calls) | fields
    if name == "call" and not fields:
      turn = dict(role="assistant", content="sql({})")
    said = [dict(role="user", content="How many?"), turn]
    said += [dict(role="tool", content="1")] * ("tool_calls" in turn)
    said += [dict(role="user", content=after)] * (after is not None)
    return messages.trajectory(said, id=id_, tools=tools, labels=(1.0,))

  rows = [made("a", "x"), made("b", "y"), made("c", "x", **HEARD[name])]
  found = validation.examine(rows, encoding.LabelPolicy())
  equal = {x["check"]: x["count"] for x in found["checks"]}["equal_solutions"]
  source = f"jsonl:{tmp_path / 'a.jsonl'}"
  jsonl.write_solutions(tmp_path / "a.jsonl", rows)
  kept = sources_lib.load(sources_lib.CorpusConfig((source,))).train
  assert [x.id for x in kept] == ["b", "c"] and equal == 1


def test_excluded_problems_are_known_by_their_letters_and_digits(
  tmp_path, capsys
):
  train = _write(
    tmp_path / "train.jsonl",
    [
      _solution("What is  $1+1$?"),
      _solution("what is 1 + 1"),
      _solution("What is $1+2$?"),
      _solution("Was ist ½ + é?"),
    ],
  )
  exclude = _write(
    tmp_path / "out.jsonl", [_solution("What is 1+1 ?"), _solution("½É was")]
  )
  found = sources_lib.load(
    sources_lib.CorpusConfig((train,), exclude=(exclude,))
  )
  assert _problems(found.train) == ["What is $1+2$?", "Was ist ½ + é?"]
  assert "2 solutions of excluded problems" in capsys.readouterr().out


def test_a_holdout_is_disjoint_stable_and_of_its_share(tmp_path):
  rows = [_solution(f"problem {i // 2}", (str(i),)) for i in range(1000)]
  config = sources_lib.CorpusConfig(
    (_write(tmp_path / "a.jsonl", rows),), holdout=0.2
  )
  found = sources_lib.load(config)
  held = set(_problems(found.evaluation))
  assert not held & set(_problems(found.train))
  assert len(found.train) + len(found.evaluation) == 1000
  assert 0.15 < len(held) / 500 < 0.25
  # Neither the order of the rows nor other rows, nor layout, move a problem.
  fewer = [
    schema.Solution(s.id, f"  {s.problem.upper()}!", s.steps)
    for s in reversed(rows[::3])
  ]
  again = sources_lib.load(
    sources_lib.CorpusConfig(
      (_write(tmp_path / "b.jsonl", fewer),), holdout=0.2
    )
  )
  names = {p.strip(" !").lower() for p in _problems(again.evaluation)}
  assert names == {s.problem for s in rows[::3]} & held
  # A larger share holds the smaller one.
  more = sources_lib.load(sources_lib.CorpusConfig(config.train, holdout=0.5))
  assert held < set(_problems(more.evaluation))


def test_named_evaluation_files_follow_the_holdout(tmp_path):
  train = _write(tmp_path / "a.jsonl", [_solution(f"p{i}") for i in range(50)])
  test = _write(tmp_path / "b.jsonl", [_solution("x")])
  found = sources_lib.load(
    sources_lib.CorpusConfig((train,), (test,), holdout=0.3)
  )
  assert len(found.evaluation) == 50 - len(found.train) + 1
  assert found.evaluation[-1].problem == "x"


def test_what_a_form_cant_hold_is_counted_by_reason(
  tmp_path, capsys, monkeypatch
):
  def half_read(path, left_out):
    left_out["steps_too_many"] += 2
    left_out["empty_rows"] += 1_000
    return [_solution("p")]

  monkeypatch.setitem(sources_lib._COUNTING, "halves", half_read)
  solutions, left_out = sources_lib.read("halves", tmp_path)
  assert len(solutions) == 1
  assert left_out == dict(steps_too_many=2, empty_rows=1_000)
  sources_lib.read_sources([f"halves:{tmp_path}"])
  assert capsys.readouterr().out == (
    f"halves:{tmp_path}: 1 solutions; left out: 1,000 empty_rows,"
    " 2 steps_too_many\n"
  )


@pytest.mark.real_data
def test_what_prm800k_leaves_out_is_said(public_data, capsys):
  path = public_data("prm800k", "phase1_test.jsonl.gz")
  solutions, left_out = sources_lib.read("prm800k", path)
  assert solutions
  sources_lib.read_sources([f"prm800k:{path}"])
  said = capsys.readouterr().out
  assert f"{len(solutions):,} solutions" in said
  for why, count in left_out.items():
    assert f"{count:,} {why}" in said


def test_an_unknown_format_names_the_nearest_and_all(tmp_path):
  with pytest.raises(errors.InputError) as caught:
    sources_lib.read("procesbench", tmp_path / "x")
  assert "did you mean processbench?" in str(caught.value)
  for name in sources_lib.format_names():
    assert name in str(caught.value)
  with pytest.raises(errors.InputError) as caught:
    sources_lib.read("zzz", tmp_path / "x")
  assert "did you mean" not in str(caught.value)
  with pytest.raises(errors.InputError, match="FORMAT:PATH"):
    sources_lib.read_sources(["a.jsonl"])


def test_a_file_is_looked_for_below_prm_jax_data(tmp_path, monkeypatch):
  below, here = tmp_path / "data", tmp_path / "here"
  for folder, problem in ((below, "below"), (here, "here")):
    folder.mkdir()
    _write(folder / "a.jsonl", [_solution(problem)])
  monkeypatch.chdir(here)
  monkeypatch.setenv("PRM_JAX_DATA", str(below))
  # What is here comes first; an absolute path means what it says.
  assert _problems(sources_lib.read("jsonl", "a.jsonl")[0]) == ["here"]
  (here / "a.jsonl").unlink()
  assert _problems(sources_lib.read("jsonl", "a.jsonl")[0]) == ["below"]
  absolute = here / "a.jsonl"
  assert sources_lib.find(absolute) == absolute
  with pytest.raises(errors.InputError, match="no such file"):
    sources_lib.read("jsonl", "b.jsonl")
  monkeypatch.delenv("PRM_JAX_DATA")
  with pytest.raises(errors.InputError, match=r"a\.jsonl: no such file"):
    sources_lib.read("jsonl", "a.jsonl")


def test_sources_that_are_no_tuple_of_texts_are_refused():
  def config(**fields):
    return ml_collections.ConfigDict(fields)

  found = train_run_config.sources_of(config(train=["jsonl:a"], holdout=0.5))
  assert found == sources_lib.CorpusConfig(("jsonl:a",), holdout=0.5)
  for bad in ("jsonl:a", 3, (3,)):
    with pytest.raises(errors.InputError, match=r"data\.train=.*tuple"):
      train_run_config.sources_of(config(train=bad))
  for holdout in (-0.1, 1.0, float("nan")):
    with pytest.raises(errors.InputError, match=r"data\.holdout"):
      sources_lib.CorpusConfig(("jsonl:a",), holdout=holdout)


def test_a_config_names_its_tokenizer(tmp_path):
  solutions = [_solution(f"one two {i}", ("three four",)) for i in range(9)]

  def make(**fields):
    return sources_lib.make_tokenizer(
      sources_lib.TokenizerConfig(**fields), solutions
    )

  assert isinstance(make(kind="bytes"), tokenizer_lib.Bytes)
  words = make(vocab_size=32, model_type="word")
  assert len(words.encode("one three")) == 2
  words.save(tmp_path)
  (file,) = tmp_path.iterdir()
  again = make(kind="file", path=str(file))
  assert again.encode("one two three") == words.encode("one two three")


@pytest.mark.parametrize(
  "content, name, message",
  [
    (None, "x.model", "tokenizer.path=.*no such file"),
    (b"\xff\xfe", "x.model", r"x\.model: not a SentencePiece model"),
    (b"{\n\xff\xfe", "x.json", r"x\.json:2: not UTF-8 at column 1;"),
    (b"{", "x.json", r"x\.json: not one that"),
  ],
)
def test_a_tokenizer_file_that_isnt_one_is_refused(
  content, name, message, tmp_path
):
  if content is not None:
    (tmp_path / name).write_bytes(content)
  config = sources_lib.TokenizerConfig("file", path=str(tmp_path / name))
  with pytest.raises(errors.InputError, match=message) as caught:
    sources_lib.make_tokenizer(config, [])
  assert "\n" not in str(caught.value)
  assert str(tmp_path / name) in str(caught.value)


def test_a_tokenizer_that_cant_be_made_is_refused():
  with pytest.raises(errors.InputError, match=r"tokenizer\.kind='byte'"):
    sources_lib.TokenizerConfig("byte")
  with pytest.raises(errors.InputError, match="no training text"):
    sources_lib.make_tokenizer(sources_lib.TokenizerConfig(), [])


def test_rows_that_a_form_passes_over_are_counted_by_name(tmp_path):
  chat = tmp_path / "chat.jsonl"
  turns = [dict(role="user", content="Add. We add."), dict(role="assistant")]
  turns[1]["content"] = "+"
  files.write_records(chat, [dict(conversations=turns)] * 2)
  assert sources_lib.read("rlhflow", chat) == ([], dict(rows_without_a_cut=2))
  bench = tmp_path / "bench.jsonl"
  row = dict(
    idx="p",
    classification="circular",
    original_question="1+1?",
    original_process=["2"],
    modified_question="1+1?",
    modified_process=["3"],
    error_steps=[1],
  )
  files.write_records(bench, [row, row])
  solutions, left_out = sources_lib.read("prmbench", bench)
  assert len(solutions) == 1 and left_out == dict(repeated_rows=1)


# --- Data that stays in its files, and several sources -----------------------


def _store(folder, name, solutions):
  """Writes solutions as ArrayRecord; returns the source."""
  tfds_records.quiet(bars=False)
  made = tfds_records.write(folder, name, dict(train=solutions))
  return f"arrayrecord:{made}"


def _numbered(solutions):
  """Returns the solutions with ids of their own."""
  return [dataclasses.replace(s, id=str(i)) for i, s in enumerate(solutions)]


def test_a_stored_source_is_filtered_as_a_file_is(tmp_path, capsys):
  rows = _numbered(
    [_solution(f"problem {i % 40}", (str(i // 80),)) for i in range(200)]
    + [_solution("problem 1"), _solution("Problem: 1!", labels=(0.0,))]
  )
  more = _numbered([_solution(f"other {i % 5}") for i in range(30)])
  test = _write(tmp_path / "test.jsonl", [_solution("PROBLEM 7")])
  a, b = _write(tmp_path / "a.jsonl", rows), _write(tmp_path / "b.jsonl", more)
  # The reader of files adds groups.
  stored = _store(tmp_path, "a", sources_lib.read_sources([a]))
  found = {}
  for source in (a, stored):
    capsys.readouterr()
    config = sources_lib.CorpusConfig(
      (source, b), (test,), exclude=(test,), holdout=0.3
    )
    data = sources_lib.load(config)
    said = capsys.readouterr().out.replace(source, "SOURCE")
    found[source] = (
      said,
      list(data.train),
      list(data.held_out),
      list(data.evaluation),
      data.train_sources.tolist(),
      data.evaluation_sources.tolist(),
    )
    assert isinstance(data.train, array_record.Chosen) == (source == stored)
  assert found[a] == found[stored]
  said, train, held_out, evaluation, of_train, of_evaluation = found[a]
  assert "equal solutions" in said and "of excluded problems" in said
  assert train and held_out and len(of_train) == len(train)
  assert evaluation[: len(held_out)] == held_out
  assert [s.problem.startswith("other") for s in train] == of_train
  # The file to evaluate on is a source of its own.
  assert of_evaluation[-1] == 2 and set(of_evaluation[:-1]) == {0, 1}


def test_of_equal_rows_the_last_stands_where_the_first_stood(tmp_path):
  rows = _numbered([_solution(p) for p in "abacba"])
  config = sources_lib.CorpusConfig((_write(tmp_path / "a.jsonl", rows),))
  assert [(s.problem, s.id) for s in sources_lib.load(config).train] == [
    ("a", "5"),
    ("b", "4"),
    ("c", "3"),
  ]


def test_a_second_start_reads_no_record_for_its_digests(tmp_path, monkeypatch):
  rows = _numbered([_solution(f"p{i}") for i in range(9)])
  source = _store(tmp_path, "a", rows)
  config = sources_lib.CorpusConfig((source,))
  first = sources_lib.load(config)
  assert list(first.train) == rows

  def refuse(problem):
    raise AssertionError(f"{problem} was read")

  monkeypatch.setattr(sources_lib, "problem_digest", refuse)
  assert len(sources_lib.load(config).train) == 9


def test_a_stored_dataset_is_a_format_for_every_reader(tmp_path):
  rows = _numbered([_solution("p"), _solution("q")])
  source = _store(tmp_path, "a", rows)
  folder = source.removeprefix("arrayrecord:")
  assert sources_lib.read("arrayrecord", folder) == (rows, {})
  assert sources_lib.read("arrayrecord", f"{folder}/train")[0] == rows


def test_sources_have_short_names_that_differ(tmp_path):
  def names(*sources):
    opened = [
      array_record.Stored(pathlib.Path(s.removeprefix("arrayrecord:")))
      if s.startswith("arrayrecord")
      else []
      for s in sources
    ]
    return sources_lib.source_names(sources, opened)

  assert names("prm800k:a.jsonl.gz", "gsm8k:a.jsonl") == ["prm800k", "gsm8k"]
  assert names("prm800k:x/a.jsonl.gz", "prm800k:x/b.jsonl") == [
    "prm800k.a",
    "prm800k.b",
  ]
  assert names("jsonl:a.jsonl", "jsonl:b/a.jsonl", "jsonl:a.jsonl") == [
    "jsonl.a",
    "jsonl.a.#2",
    "jsonl.a",
  ]
  stored = _store(tmp_path, "mine", [_solution("p")])
  assert names(stored, "jsonl:a") == ["mine", "jsonl"]


def test_weights_are_one_for_each_source(tmp_path):
  a, b = (_write(tmp_path / f"{x}.jsonl", [_solution(x)]) for x in "ab")
  config = sources_lib.CorpusConfig((a, b, a), weights=(1.0, 3.0, 0.5))
  data = sources_lib.load(config)
  assert data.names == ("jsonl.a", "jsonl.b")
  # One that is named twice gets both.
  assert data.weights == (1.5, 3.0)
  assert sources_lib.load(sources_lib.CorpusConfig((a, b))).weights == ()
  read = train_run_config.sources_of(
    ml_collections.ConfigDict(dict(train=(a, b), weights=(1.0, 2.0)))
  )
  assert read.weights == (1.0, 2.0)
  for weights in ((1.0,), (1.0, 0.0), (1.0, float("inf")), (1.0, float("nan"))):
    with pytest.raises(errors.InputError, match=r"data\.weights"):
      sources_lib.CorpusConfig((a, b), weights=weights)


def test_a_vocabulary_of_stored_data_is_learnt_from_a_part_and_says_so(
  tmp_path, monkeypatch, capsys
):
  rows = _numbered([_solution(f"word{i:02}") for i in range(30)])
  data = sources_lib.load(
    sources_lib.CorpusConfig((_store(tmp_path, "a", rows),))
  )
  config = sources_lib.TokenizerConfig(vocab_size=8, model_type="word")

  def learnt():
    words = sources_lib.make_tokenizer(config, data.train)
    return words.vocab_size

  whole = learnt()
  assert "learns from" not in capsys.readouterr().out
  monkeypatch.setattr(sources_lib, "WORDS_FROM", 10)
  assert learnt() == whole - 20
  assert "learns from 10 of the solutions" in capsys.readouterr().out
