"""An output never is, links to or lies in what is read, or a model's folder."""

import os

import pytest

from prm_jax import errors
from prm_jax.runtime import outputs


@pytest.fixture
def stage(tmp_path, monkeypatch):
  """The current folder: in.jsonl, a link and a hard link to it, model/."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.jsonl").write_text("{}\n")
  (tmp_path / "link").symlink_to("in.jsonl")
  os.link("in.jsonl", "hard")
  (tmp_path / "model" / "checkpoints" / "5").mkdir(parents=True)
  (tmp_path / "model" / "model.json").write_text("{}")
  (tmp_path / "to_model").symlink_to("model")
  (tmp_path / "data").mkdir()
  (tmp_path / "dangling").symlink_to("model/new.jsonl")
  return tmp_path


@pytest.mark.parametrize(
  ("path", "words"),
  [
    ("in.jsonl", "is read by this command"),
    ("./data/../in.jsonl", "is read by this command"),
    ("link", "is read by this command"),
    ("hard", "is read by this command"),
    ("data/new.jsonl", "lies in data, which this command reads"),
    ("data/deep/new.jsonl.gz", "lies in data, which this command reads"),
    ("model/model.json", "a checkpoint folder"),
    ("model/new/out.jsonl", "a checkpoint folder"),
    ("to_model/out.jsonl", "a checkpoint folder"),
    ("dangling", "a checkpoint folder"),
    ("data/../model/checkpoints/5/x", "a checkpoint folder"),
    ("data", "is a folder"),
    ("in.jsonl/out", "takes no files"),
    ("x" * 256, "a name has more than 255 bytes"),
    ("\u00e9" * 128 + "/out", "a name has more than 255 bytes"),
  ],
)
def test_an_output_that_would_harm_is_refused_by_name(path, words, stage):
  with pytest.raises(errors.InputError) as caught:
    outputs.check(dict(output=path), ["in.jsonl", "data", None])
  assert str(caught.value).startswith(f"{path}: ")
  assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "path",
  [
    None,
    "-",
    "<stdout>",
    "gs://b/model",
    "new.jsonl",
    "in.jsonl.gz",
    "new/deep/o.jsonl",
  ],
)
def test_any_other_output_is_taken_and_nothing_is_made(path, stage):
  before = sorted(os.listdir())
  outputs.check(dict(output=path), ["in.jsonl", "data", "absent", None, ""])
  assert sorted(os.listdir()) == before


def test_a_folder_may_be_there_but_not_inside_or_be_what_is_read(stage):
  outputs.check(dict(workdir="model"), ["in.jsonl"], are_folders=True)
  for path in ("data", "data/run", "model/run", "to_model/run"):
    with pytest.raises(errors.InputError):
      outputs.check(dict(workdir=path), ["data"], are_folders=True)


@pytest.mark.parametrize("other", ["new", "data/../new", "link", "hard"])
def test_two_outputs_arent_one_file(other, stage):
  first = "new" if "new" in other else "in.jsonl"
  with pytest.raises(errors.InputError, match="is written as `train`"):
    outputs.check(dict(train=first, test=other))
