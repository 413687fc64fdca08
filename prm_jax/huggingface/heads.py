"""Step heads of published reward models, as tensors on both sides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
import pathlib
from typing import Any

from flax import traverse_util
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import class_names
from prm_jax.models import model_config as model_config
from prm_jax.training import program as program_lib

Head = dict[str, Any]

# Our parameter -> its name on the other side; a kernel is transposed there.
_NAMES: dict[str, dict[tuple[str, ...], str]] = {
  "ProcessRewardModel": {
    ("inner", "kernel"): "score.0.weight",
    ("inner", "bias"): "score.0.bias",
    ("outer", "kernel"): "score.2.weight",
    ("outer", "bias"): "score.2.bias",
  },
  "TokenClassification": {("kernel",): "score.weight", ("bias",): "score.bias"},
  "value head": {
    ("kernel",): "v_head.summary.weight",
    ("bias",): "v_head.summary.bias",
  },
  "SequenceClassification": {("kernel",): "score.weight"},
}
_NAMES["RewardModel"] = _NAMES["ProcessRewardModel"]
# Those that score a whole solution by one logit: ModelConfig.outcome_head.
OUTCOME_HEADS = dict(SequenceClassification="linear_no_bias", RewardModel="mlp")
# The template that a model with such a head is read in.
TEMPLATES = {
  "ProcessRewardModel": "qwen_prm",
  "TokenClassification": "token_classification",
  "value head": "skywork",
}


def kind_of(architecture: str, names: Collection[str]) -> str | None:
  """Returns which kind of head a checkpoint has, None for the LM's own.

  It is one of TEMPLATES or of OUTCOME_HEADS.
  """
  for kind in ("ProcessRewardModel", "TokenClassification", *OUTCOME_HEADS):
    if architecture.endswith(f"For{kind}"):
      return kind
  return "value head" if "v_head.summary.weight" in names else None


def fields_of(kind: str) -> dict[str, Any]:
  """Returns the fields of ModelConfig that say what the score head is."""
  if kind in OUTCOME_HEADS:
    return dict(outcome_head=OUTCOME_HEADS[kind])
  if kind == "ProcessRewardModel":
    return dict(step_head="mlp", step_classes=2)
  return dict(step_classes=2 if kind == "TokenClassification" else 1)


def read(
  kind: str,
  config: huggingface.Source,
  tensors: huggingface.Tensors,
  unused: Collection[str],
  model: model_config.ModelConfig,
  program: program_lib.Kind,
  source: pathlib.Path,
  *,
  dtype: str | None = "float32",
) -> tuple[Head, list[str]]:
  """Returns a head's parameters, and the names of their tensors.

  Its classes are put into our order, from bad to good. An outcome head has one
  logit. Where two are published, as in our own exports, it is their difference,
  in float32.

  Args:
    kind: The kind of published head.
    config: The folder's config.json, which may name its classes.
    tensors: The tensors of the folder.
    unused: The names of the tensors that the trunk doesn't use.
    model: The shape of the model.
    program: The kind of program.
    source: The folder, for messages.
    dtype: The dtype of the parameters; None keeps that of the tensors.

  Raises:
    InputError: A tensor is missing or has another shape than the head's, or the
      names of its classes don't say which is good.
  """
  head: dict[tuple[str, ...], jax.Array] = {}
  one_logit = _has_outcome_head(program) and kind not in OUTCOME_HEADS
  classes = 2 if one_logit else model.step_classes
  if kind in OUTCOME_HEADS:
    classes = 1
  for path, hf_name in _NAMES[kind].items():
    width = model.d_model if path[0] == "inner" else classes
    shape: tuple[int, ...] = (width, model.d_model)
    if path[-1] == "bias":
      shape = shape[:1]
    if hf_name not in unused:
      raise errors.InputError(f"{source}: the score head lacks {hf_name}")
    value = tensors.read(hf_name)
    if value.shape != shape:
      if kind == "SequenceClassification" and shape[1:] == value.shape[1:]:
        raise errors.InputError(
          f"{source}: a classifier of {len(value)} labels ({hf_name}); an outcome"
          " reward model has one"
        )
      raise errors.InputError(
        f"{source}: {hf_name} is {value.shape}; for this model's scores it must"
        f" be {shape}"
      )
    if path[0] != "inner":
      value = value[[*order_of(kind, config, classes, source)]]
    if one_logit:
      value = value.astype(np.float32)
      value = value[1:] - value[:1]
    head[path] = jnp.asarray(value.T, dtype)
  return traverse_util.unflatten_dict(head), list(_NAMES[kind].values())


def order_of(
  kind: str, config: huggingface.Source, classes: int, source: pathlib.Path
) -> tuple[int, ...]:
  """Returns the indices of a head's classes, from bad to good.

  Raises:
    InputError: See `class_names.order`.
  """
  # transformers knows no value head: what names classes there is another's.
  if kind == "value head":
    return tuple(range(classes))
  return class_names.order(config.raw, classes, source)


# --- Out --------------------------------------------------------------------


def tensors(
  program: program_lib.Kind,
  template: str,
  model: model_config.ModelConfig,
  params: Any,
  source: pathlib.Path,
) -> tuple[str, dict[str, np.ndarray]]:
  """Returns the architecture's kind and its head's tensors, float32.

  Raises:
    InputError: the head has no place in the template's architecture.
  """
  if program.writes:
    return "CausalLM", {}
  if program.has_reference:
    raise errors.InputError(
      f"{source}: an implicit PRM scores with two models, itself and its"
      " reference, and no published architecture holds both"
    )
  steps = not _has_outcome_head(program)
  if steps and model.step_head == "tokens":
    return "CausalLM", {}
  head = jax.tree.map(
    lambda x: np.asarray(x, np.float32), params[f"{program.heads[0]}_head"]
  )
  for kind, outcome_head in OUTCOME_HEADS.items():
    if not steps and model.outcome_head == outcome_head:
      return kind, _renamed(kind, head)
  mlp = steps and model.step_head == "mlp"
  if template == "qwen_prm":
    weights = head if mlp else _as_mlp(_two_classes(head))
    weights = weights | dict(outer=_two_classes(weights["outer"]))
    return "ProcessRewardModel", _renamed("ProcessRewardModel", weights)
  if mlp:
    raise errors.InputError(
      f"{source}: an mlp step head has a place in qwen_prm alone, and this is"
      f" read as {template}; train with model.step_head='linear'"
    )
  if template == "skywork":
    if head["kernel"].shape[1] == 2:
      head = {name: x[..., 1:] - x[..., :1] for name, x in head.items()}
    return "CausalLM", _renamed("value head", head)
  return "TokenClassification", _renamed(
    "TokenClassification", _two_classes(head)
  )


def _renamed(kind: str, head: Head) -> dict[str, np.ndarray]:
  """Returns a head's tensors under their names on the other side."""
  flat = traverse_util.flatten_dict(head)
  return {hf_name: flat[path].T for path, hf_name in _NAMES[kind].items()}


def _has_outcome_head(program: program_lib.Kind) -> bool:
  return program.heads == ("outcome",)


def _two_classes(head: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns a head of one logit as two whose softmax is its sigmoid."""
  kernel, bias = head["kernel"], head["bias"]
  if kernel.shape[1] == 1:
    kernel = np.concatenate([np.zeros_like(kernel), kernel], axis=1)
    bias = np.concatenate([np.zeros_like(bias), bias])
  return dict(kernel=kernel, bias=bias)


def _as_mlp(head: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns Linear, ReLU, Linear with a linear head's logits, exactly.

  x = relu(x) - relu(-x): each logit takes two of the hidden units.
  """
  kernel, bias = head["kernel"], head["bias"]
  d_model, classes = kernel.shape
  inner = np.zeros((d_model, d_model), np.float32)
  inner_bias = np.zeros(d_model, np.float32)
  outer = np.zeros((d_model, classes), np.float32)
  for k in range(classes):
    for unit, sign in ((2 * k, 1), (2 * k + 1, -1)):
      inner[:, unit] = sign * kernel[:, k]
      inner_bias[unit] = sign * bias[k]
      outer[unit, k] = sign
  return dict(
    inner=dict(kernel=inner, bias=inner_bias),
    outer=dict(kernel=outer, bias=np.zeros(classes, np.float32)),
  )
