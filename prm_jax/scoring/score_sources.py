"""What scores solutions, found by a name: a checkpoint, a URL or a function.

MODULE:FUNCTION          a function of a module on Python's path
FILE.py:FUNCTION         a function of a file
http://HOST:PORT/v1      a server's POST /v1/prm/score, also https
FOLDER                   a checkpoint folder of a PRM or an ORM
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
from typing import Any, TypeVar

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.runtime import arguments
from prm_jax.runtime import files
from prm_jax.runtime import user_functions
from prm_jax.scoring import saved
from prm_jax.scoring import score_checks
from prm_jax.scoring import scorer as scorer_lib

FORMS = (
  "a checkpoint folder, FILE.py:FUNCTION, MODULE:FUNCTION, or a server's"
  " address up to and including /v1"
)
# As a rollout's solutions are: with schema.REFERENCE and schema.STATISTICS.
_WITHOUT_STEPS = schema.Solution(
  "trial",
  "What is 1 + 1?",
  (),
  source="policy",
  extra=dict(
    reference_answer="2",
    ended=True,
    stopped="end",
    num_tokens=1,
    log_prob_mean=0.0,
    log_prob_min=0.0,
  ),
)
_Checked = TypeVar("_Checked", schema.OutcomeReward, schema.Verify)
# What gives scores, as plain data: equal if the scores are.
Identity = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Key:
  """A server's key.

  Args:
    variable: The environment variable that holds it; None is no key.
    insecure: Whether it may be sent unencrypted, over http, to another machine.
  """

  variable: str | None = None
  insecure: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """A `Score`, and what it is.

  Args:
    score: Scores solutions.
    identity: What gives the scores.
    scorer: The model, if it is a checkpoint.
  """

  score: schema.Score
  identity: Identity
  scorer: scorer_lib.Scorer | None = None


@arguments.checked
def load_score(
  name: files.PathLike,
  *,
  model: str = "",
  key_variable: str | None = None,
  insecure_key: bool = False,
  compute_dtype: str | None = None,
) -> schema.Score:
  """Returns what a name stands for as a function that scores steps.

  Args:
    name: A checkpoint folder; FILE.py:FUNCTION or MODULE:FUNCTION, a function
      of your own; or the address, up to and including /v1, of a server with
      POST /v1/prm/score. A function takes Solutions and returns, for each of
      them, a list with the score of each step, P(correct so far) in [0, 1], or
      StepScores.
    model: The name of the model at a server; "" leaves it to the server.
    key_variable: The environment variable with the server's key.
    insecure_key: Whether the key may be sent unencrypted, over http, to another
      machine.
    compute_dtype: The type of a checkpoint's matmuls and activations, float32,
      bfloat16 or float16; None is that of the checkpoint.

  Returns:
    The function. What it gets from a function of your own or from a server is
    checked: a row for each solution, a score in [0, 1] for each step.

  Raises:
    InputError: The name has no such form, or what it names can't be loaded or
      reached.
  """
  key = Key(key_variable, insecure_key)
  return load(
    str(name), model=model, key=key, compute_dtype=compute_dtype
  ).score


def load(
  name: str,
  *,
  model: str = "",
  key: Key = Key(),
  compute_dtype: str | None = None,
) -> Loaded:
  """Returns a name's `Score` and what it is.

  Args:
    name: See load_score.
    model: See load_score.
    key: The key of a server.
    compute_dtype: See load_score.

  Returns:
    The `Score`, checked as load_score's, and its identity, which names the
    type if it is given.

  Raises:
    InputError: See load_score; or a type is given and it is no checkpoint.
  """
  check(name, key)
  if compute_dtype is not None and not is_checkpoint(name):
    raise errors.InputError(
      f"dtype={compute_dtype}: {name} is no checkpoint and computes as it does;"
      " take it out"
    )
  if is_url(name):
    client = client_lib.Client(
      name,
      model=model,
      key_variable=key.variable,
      insecure_key=key.insecure,
    )
    return Loaded(
      client.score,  # which checks them
      dict(
        url=name,
        model=client.model,
        model_fingerprint=client.model_fingerprint,
      ),
    )
  if function := user_functions.parse(name):
    loaded = user_functions.load(function)
    return Loaded(score_checks.scoring(loaded, name), loaded.identity)
  folder = checkpoint_folder(name)
  model_json.read_description(folder)  # refuses what is no checkpoint
  # Chosen once: another process may save a later one meanwhile.
  step = saves.chosen(folder, None)
  scorer = saved.load(folder, step, compute_dtype=compute_dtype)
  identity = _identity(folder, step)
  if compute_dtype is not None:
    identity["compute_dtype"] = compute_dtype
  return Loaded(scorer.score, identity, scorer)


def load_outcome_reward(name: str) -> tuple[schema.OutcomeReward, Identity]:
  """Returns a function that rewards whole solutions, and what it is.

  Args:
    name: FILE.py:FUNCTION or MODULE:FUNCTION. The function takes Solutions and
      returns a finite number for each. It is called once for a solution without
      a step, as a trial.

  Returns:
    The function, whose results are checked, and its identity.

  Raises:
    InputError: It isn't such a function, or it fails.
  """
  return _tried(name, score_checks.rewarding)


def load_verify(name: str) -> tuple[schema.Verify, Identity]:
  """Returns a function that tells right solutions, and what it is.

  Args:
    name: FILE.py:FUNCTION or MODULE:FUNCTION. The function takes Solutions and
      returns True, False or None for each. It is called once for a solution
      without a step, as a trial.

  Returns:
    The function, whose results are checked, and its identity.

  Raises:
    InputError: It isn't such a function, or it fails.
  """
  return _tried(name, score_checks.verifying)


def check(name: str, key: Key = Key()) -> None:
  """Refuses a name of none of the forms; reads and asks nothing.

  Args:
    name: See load_score.
    key: The key of a server.

  Raises:
    InputError: It has none of the forms, or the key would be sent unencrypted.
  """
  if is_url(name):
    client_lib.Settings(
      name, key_variable=key.variable, insecure_key=key.insecure
    )
  elif not name or "://" in name:
    raise errors.InputError(f"{name!r}: expected {FORMS}")
  else:
    user_functions.parse(name)


def check_function(name: str) -> None:
  """Refuses a name that isn't that of a function; reads nothing.

  Args:
    name: FILE.py:FUNCTION or MODULE:FUNCTION.

  Raises:
    InputError: It is something else.
  """
  _function(name)


def is_url(name: str) -> bool:
  """Returns whether a name is a server's address.

  Args:
    name: See load_score.

  Returns:
    Whether it begins as one.
  """
  return name.lower().startswith(("http://", "https://"))


def is_function(name: str) -> bool:
  """Returns whether a name is that of a function.

  Args:
    name: See load_score.

  Returns:
    Whether it is FILE.py:FUNCTION or MODULE:FUNCTION.
  """
  return not is_url(name) and user_functions.parse(name) is not None


def is_checkpoint(name: str) -> bool:
  """Returns whether a name is neither a server's address nor a function's.

  Args:
    name: See load_score.

  Returns:
    Whether it can only be a folder.
  """
  return not (is_url(name) or is_function(name))


def path_of(name: str) -> pathlib.Path | None:
  """Returns the file or folder that a name names.

  Args:
    name: See load_score; "" names nothing.

  Returns:
    The path; None for a module, a server and nothing.
  """
  if not name or is_url(name):
    return None
  function = user_functions.parse(name)
  if function is None:
    return pathlib.Path(name)
  return pathlib.Path(function.place) if function.is_file else None


def checkpoint_folder(name: str) -> pathlib.Path:
  """Returns the checkpoint folder that a name is.

  Args:
    name: The path of the folder.

  Returns:
    The path.

  Raises:
    InputError: There is no such folder.
  """
  folder = files.local_path(name)
  if not folder.exists():
    raise errors.InputError(
      f"{name}: there is no such folder; expected {FORMS}"
    )
  return folder


def _tried(
  name: str, checked: Callable[[Callable[[Any], Any], str], _Checked]
) -> tuple[_Checked, Identity]:
  """Returns a user's function, tried and its results checked, and its identity.

  Args:
    name: FILE.py:FUNCTION or MODULE:FUNCTION.
    checked: Returns the function as one whose results are checked.
  """
  loaded = user_functions.load(_function(name))
  function = checked(loaded, name)
  _try_without_steps(function)
  return function, loaded.identity


def _try_without_steps(function: Callable[[Sequence[schema.Solution]], Any]):
  """Refuses a function that fails for a solution without a step.

  A policy may write its first such solution after hours of training.
  """
  try:
    function([_WITHOUT_STEPS])
  except errors.InputError as e:
    raise errors.InputError(
      f"{e} (tried on a solution without a step, as a policy may write)"
    ) from e


def _function(name: str) -> user_functions.Name:
  function = None if is_url(name) else user_functions.parse(name)
  if function is None:
    raise errors.InputError(
      f"{name}: expected the name of a function, FILE.py:FUNCTION or"
      " MODULE:FUNCTION"
    )
  return function


def _identity(folder: pathlib.Path, step: int) -> dict[str, Any]:
  """Returns what a checkpoint's scores depend on.

  The digest is of its description and of the leaves' fingerprints, which were
  made when it was saved: it costs nothing, and is the same on every machine.
  """
  where = (folder / "checkpoints" / str(step)).absolute()
  known = integrity.read_meta(where) if (where / "meta").exists() else {}
  record = files.read_json(folder / model_json.DESCRIPTION)
  content = dict(description=record, leaves=known.get("fingerprints"))
  text = json.dumps(content, sort_keys=True)
  return dict(
    checkpoint_step=step, sha256=hashlib.sha256(text.encode()).hexdigest()
  )
