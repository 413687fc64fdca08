"""Verbs: fields are declared once, and a value of fields checks them."""

import dataclasses
import pathlib
from typing import Literal

import numpy as np
import pytest

import prm_jax
from prm_jax import errors
from prm_jax.runtime import verbs


@dataclasses.dataclass(frozen=True)
class Inner(verbs.Value):
  """What is inside.

  Args:
    folder: A folder.
    count: How many there are.
  """

  folder: verbs.Local
  count: verbs.Count = 2


@dataclasses.dataclass(frozen=True)
class Outer(verbs.Verb):
  """Does it.

  Args:
    inner: The model.
    how: In which way, in a text
      of two lines.
    names: A name; repeat it.
    seed: The seed.

  Example:
    prm-jax do --inner=x
  """

  inner: Inner
  how: Literal["fast", "well"] = "well"
  names: tuple[str, ...] = ()
  seed: verbs.Seed = 0


def test_a_declaration_is_read_from_type_default_and_docstring():
  inner, how, names, seed = verbs.fields(Outer)
  assert inner.inner is Inner and inner.default is dataclasses.MISSING
  assert how.choices == ("fast", "well") and how.default == "well"
  assert how.text == "In which way, in a text of two lines"
  assert names.element is str and seed.parse is verbs.seed
  assert verbs.summary(Outer) == "Does it."
  assert verbs.example(Outer) == "prm-jax do --inner=x"


def test_a_verb_makes_the_job_that_it_runs():
  job = prm_jax.Score.job(input="a.jsonl", output="b.jsonl", shard="1/2")
  assert str(job.input.path) == "a.jsonl" and str(job.part) == "1/2"
  with pytest.raises(errors.InputError, match="Outer: runs without a job"):
    Outer.job(input="a")


def test_a_whole_number_is_the_float_that_it_equals():
  chosen = prm_jax.Consensus(0, 0.5)
  assert type(chosen.above_a) is float


def test_what_is_of_none_of_several_kinds_is_refused():
  with pytest.raises(errors.InputError, match="policy must be"):
    prm_jax.Sample(prm_jax.RewardModel("a"))


def test_the_first_field_of_an_inner_value_may_stand_for_it():
  assert Outer("a").inner == Inner(pathlib.Path("a"))
  assert Outer(Inner("a", 3)).inner.count == 3
  assert Outer(pathlib.Path("a")) == Outer("a")


def test_a_list_becomes_a_tuple_that_nobody_can_change():
  names = ["a"]
  verb = Outer("a", names=names)
  names.append("b")
  assert verb.names == ("a",) and hash(verb) == hash(Outer("a", names=("a",)))


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("runs/a", pathlib.Path("runs/a")),
    ("gs://bucket/runs/a/", "gs://bucket/runs/a"),
  ],
)
def test_a_workdir_is_a_folder_here_or_in_a_bucket(text, value):
  assert verbs.workdir(text) == value


@pytest.mark.parametrize("text", ["gs://", "gs://b", "gs://b/", "gs:///a", "-"])
def test_a_workdir_names_its_folder(text):
  with pytest.raises(ValueError, match=text):
    verbs.workdir(text)


def test_a_config_is_read_anew_and_a_dict_of_fields_stays_as_it_was(tmp_path):
  fields = dict(seed=1, fit=dict(steps=2))
  config = verbs.Config(fields, ["fit.steps=3"])
  assert config.filled().fit.steps == 3 and config.read().fit.steps == 2
  assert fields == dict(seed=1, fit=dict(steps=2))
  assert (config.path, config.name) == (None, "config")
  file = verbs.Config(tmp_path / "c.py", ["seed=4"])
  assert file.path == tmp_path / "c.py" and file.name == str(tmp_path / "c.py")
  for seed in (1, 2):
    (tmp_path / "c.py").write_text(
      "import ml_collections\ndef get_config():\n"
      f"  return ml_collections.ConfigDict(dict(seed={seed}))\n"
    )
    assert file.read().seed == seed and file.filled().seed == 4


def test_what_is_no_job_is_refused_in_a_line():
  with pytest.raises(
    errors.InputError, match="job must be ConvertJob, found 5"
  ):
    prm_jax.Convert("jsonl").run(5)


def test_a_dash_names_no_file_where_nothing_is_streamed():
  for make in (prm_jax.EvaluateSteps, prm_jax.EvaluateProcessBench):
    with pytest.raises(errors.InputError, match="this isn't a stream here"):
      make(scores="-")


def test_fields_of_a_config_are_no_path_of_another_value():
  with pytest.raises(errors.InputError, match="folder must be a path, found"):
    Outer(dict(folder="a"))


def test_a_number_is_no_path():
  with pytest.raises(errors.InputError, match="folder must be a path"):
    Inner(3)


@pytest.mark.parametrize("path", ["p", pathlib.Path("p")])
def test_a_path_may_be_given_wherever_a_text_names_one(path):
  search = prm_jax.Search(
    policy=path, scorer=path, rule=prm_jax.Speculate(draft=path)
  )
  assert search.policy == prm_jax.Policy(path) == prm_jax.Policy("p")
  assert (search.scorer, search.rule.draft) == ("p", "p")
  assert prm_jax.Verify(policy=path, scorer=path, threshold=path)


@pytest.mark.parametrize(
  ("make", "said"),
  [
    (dict(scorer=None), "scorer must be a path, found None"),
    (dict(scorer=prm_jax.RewardModel("a")), "scorer must be a path, found Rew"),
    (dict(scorer=""), "`scorer=`: is empty; give a path"),
    (dict(policy=5), "policy must be Policy | a path, found 5"),
    (dict(threshold=None), "threshold must be float | a path, found None"),
    (dict(threshold=True), "threshold must be float | a path, found True"),
  ],
)
def test_what_is_no_path_is_refused_in_words(make, said):
  needed = dict(policy="p", scorer="s", threshold=0.5)
  with pytest.raises(errors.InputError) as error:
    prm_jax.Verify(**needed | make)
  assert said in str(error.value)


def test_a_pair_has_its_two_parts():
  with pytest.raises(errors.InputError, match="request_option must be tuple"):
    prm_jax.Server(request_option=(5,))


def test_an_empty_path_names_no_output():
  with pytest.raises(errors.InputError, match="`output=`: is empty"):
    prm_jax.Select.job("a.jsonl", "")


def test_a_number_of_numpys_is_a_number():
  seed = Outer("a", seed=np.int64(3)).seed
  assert seed == 3 and type(seed) is int
  with pytest.raises(errors.InputError, match="`seed=-1`"):
    Outer("a", seed=np.int32(-1))


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (dict(how="bad"), "`how='bad'`: expected one of fast, well"),
    (dict(seed=-1), "`seed=-1`: '-1' isn't 0, 1, 2"),
    (dict(seed=2**32), "is more than 4294967295"),
    (dict(seed=1.5), "'1.5' isn't a whole number"),
    (dict(names=3), "names must be"),
    (dict(names=["a", 3]), "names must be str each, found 3"),
    (dict(inner=Inner), "inner must be Inner"),
    (dict(inner=7), "inner must be Inner"),
    (dict(inner="gs://x/y"), "remote paths"),
  ],
)
def test_a_value_that_cant_be_is_refused_in_python(given, said):
  with pytest.raises(errors.InputError) as error:
    Outer(**{"inner": "a"} | given)
  assert said in str(error.value)
