"""Laws of looking at solutions as training does."""

import json
import logging
import re
import typing

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.datasets import data_inputs
from prm_jax.datasets import inspection
from prm_jax.records import jsonl
from prm_jax.text import encoding
from prm_jax.text import messages

SOLUTIONS = [
  schema.Solution(f"s{i}", f"What is {i}?", ("a `limit=3`", "b"), (1.0, i % 2))
  for i in range(5)
]


@pytest.fixture
def path(tmp_path):
  jsonl.write_solutions(tmp_path / "in.jsonl", SOLUTIONS)
  return tmp_path / "in.jsonl"


def test_what_a_command_prints_is_what_its_verb_gives(path, capsys):
  words = ("--neutral=bad", "--score_position=separator")
  options = dict(neutral="bad", score_position="separator")
  assert main.main(["data", "stats", str(path), *words]) == 0
  stats = inspection.Stats(**options)(SOLUTIONS)
  assert capsys.readouterr().out == f"{stats}\n"
  assert main.main(["data", "inspect", str(path), "--limit=2", *words]) == 0
  texts = inspection.Inspect(limit=2, **options)(SOLUTIONS)
  more = "(3 more solutions; --limit shows more)"
  assert capsys.readouterr().out == "\n".join([*texts, more, ""])
  # A flag's name in a solution is no flag.
  assert len(texts) == 2 and "a `limit=3`" in texts[0]


def test_what_the_doctor_writes_is_what_its_verb_finds(path, tmp_path, caplog):
  caplog.set_level(logging.INFO, "prm_jax")
  jsonl.write_solutions(tmp_path / "test.jsonl", SOLUTIONS[:2])
  verb = inspection.Examine(
    against=(f"jsonl:{tmp_path / 'test.jsonl'}",),
    max_tokens=12,
    truncation="truncate",
  )
  found = verb(SOLUTIONS)
  assert found["contaminated_solutions"] == 2 and found["lost_targets"]["right"]
  output = tmp_path / "out.json"
  job = inspection.ExamineJob(data_inputs.Source(path), output)
  with pytest.raises(errors.InputError, match=r"contamination: .*`allow="):
    verb.run(job)
  written = json.loads(output.read_text())
  assert {name: written[name] for name in found} == json.loads(
    json.dumps(found)
  )
  assert written["file"] == str(path)
  assert f"results: {output}" in caplog.messages


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (dict(allow=("nonsense",)), "`allow=nonsense`: expected one of"),
    (dict(truncation="drop"), "give `max_tokens` or `checkpoint`"),
    (dict(max_tokens=-1), "`max_tokens=-1`"),
  ],
)
def test_what_cant_be_examined_is_refused_in_python(options, message):
  with pytest.raises(errors.InputError, match=re.escape(message)):
    inspection.Examine(**options)


def test_a_conversation_has_no_length_without_a_models_template():
  said = [dict(role="user", content="q"), dict(role="assistant", content="x")]
  talk = messages.trajectory(said, id="a", labels=(1.0,))
  assert inspection.Examine()([talk])["solutions"] == 1
  with pytest.raises(
    errors.InputError, match="`max_tokens=9`: solution 'a' is"
  ):
    inspection.Examine(max_tokens=9)([talk])


def test_the_words_that_the_options_take_are_those_of_the_encoding():
  positions = typing.get_args(inspection.ScorePosition)
  assert positions == encoding.SCORE_POSITIONS
  assert typing.get_args(inspection.Truncation) == encoding.TRUNCATIONS
