"""Laws of Import and Export, from Python and as commands."""

import re
import typing

import pytest
import test_import_export

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.cli import main
from prm_jax.huggingface import exchange

pytestmark = pytest.mark.usefixtures("one_device")


def _content(folder):
  """Returns the bytes of what says how a model is read, and of its weights."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob("*")
    if path.name in ("model.json", "config.json", "README.md")
    or path.suffix in (".safetensors", ".jinja")
  }


def test_a_value_makes_the_folder_that_its_command_makes(tmp_path, capsys):
  theirs = test_import_export._theirs(tmp_path / "theirs")
  words = [f"--from={theirs}", f"--to={tmp_path / 'a' / 'x'}"]
  assert main.main(["import", *words, "--dtype=float32"]) == 0
  told = capsys.readouterr().out
  verb = exchange.Import(theirs, tmp_path / "b" / "x", dtype="float32")
  imported = verb()
  assert f"{tmp_path / 'a' / 'x'}: {imported.family}, " in told
  assert _content(tmp_path / "a") == _content(tmp_path / "b")

  words = [f"--checkpoint={tmp_path / 'a' / 'x'}", f"--to={tmp_path / 'c/y'}"]
  assert main.main(["export", *words, "--dataset=o/d", "--license=mit"]) == 0
  told = capsys.readouterr().out
  facts = exchange.Export(
    *(tmp_path / "b" / "x", tmp_path / "d" / "y"),
    dataset=("o/d",),
    license="mit",
  )()
  assert f"{facts.architecture}, {facts.dtype}, read as" in told
  written = _content(tmp_path / "c")
  assert written == _content(tmp_path / "d")
  assert b"license: mit" in written["y/README.md"]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (dict(thinking=True), "`thinking` is of a policy; give `role=policy`"),
    (dict(policy_template="qwen3"), "`policy_template` is of a policy"),
    (dict(prompt_file="x.txt"), "`prompt_file` is of a policy"),
    (dict(base="-"), "`base=-`"),
  ],
)
def test_what_no_import_can_be_is_refused_in_python(options, message):
  with pytest.raises(errors.InputError, match=re.escape(message)):
    exchange.Import("theirs", "ours", **options)


def test_the_types_of_an_export_are_those_that_can_be_written():
  hints = typing.get_type_hints(exchange.Export)
  (dtype, _) = typing.get_args(hints["dtype"])
  assert typing.get_args(dtype) == huggingface.DTYPES
