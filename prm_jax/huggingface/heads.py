"""Step heads of published reward models, as tensors on both sides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
import pathlib
from typing import Any, NamedTuple

from flax import traverse_util
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import class_names
from prm_jax.models import kinds
from prm_jax.models import model_config

Head = dict[str, Any]


class Kind(NamedTuple):
  """A kind of published score head.

  Args:
    names: Our parameters -> their names; a kernel is transposed there.
    fields: The fields of ModelConfig that say what the head is.
    template: The template that a model with it is read in; None if it scores a
      whole solution by one logit, and is read in its own chat.
    instead: What to train where a family has no class for it.
  """

  names: Mapping[tuple[str, ...], str]
  fields: Mapping[str, Any]
  template: str | None = None
  instead: str = ""

  @property
  def is_outcome(self) -> bool:
    return self.template is None


def _linear(name: str, *path: str) -> dict[tuple[str, ...], str]:
  """Returns the names of a layer's parameters."""
  return {(*path, "kernel"): f"{name}.weight", (*path, "bias"): f"{name}.bias"}


_MLP = _linear("score.0", "inner") | _linear("score.2", "outer")
KINDS = dict(
  ProcessRewardModel=Kind(
    _MLP,
    dict(step_head="mlp", step_classes=2),
    "qwen_prm",
    "encoding.template='token_classification'",
  ),
  TokenClassification=Kind(
    _linear("score"),
    dict(step_classes=2),
    "token_classification",
    "model.step_head='tokens'",
  ),
  SequenceClassification=Kind(
    {("kernel",): "score.weight"}, dict(outcome_head="linear_no_bias")
  ),
  RewardModel=Kind(
    _MLP, dict(outcome_head="mlp"), None, "model.outcome_head='linear_no_bias'"
  ),
)
VALUE_HEAD = "value head"  # of no class, but beside a ForCausalLM
KINDS[VALUE_HEAD] = Kind(
  _linear("v_head.summary"), dict(step_classes=1), "skywork"
)


def kind_of(architecture: str, names: Collection[str]) -> str | None:
  """Returns which of KINDS a checkpoint has, None for the LM's own head."""
  for kind in KINDS:
    if architecture.endswith(f"For{kind}"):
      return kind
  return VALUE_HEAD if "v_head.summary.weight" in names else None


def read(
  kind: str,
  config: huggingface.Source,
  tensors: huggingface.Tensors,
  unused: Collection[str],
  model: model_config.ModelConfig,
  program: kinds.Kind,
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
  names, is_outcome = KINDS[kind].names, KINDS[kind].is_outcome
  one_logit = _has_outcome_head(program) and not is_outcome
  classes = 2 if one_logit else 1 if is_outcome else model.step_classes
  for path, hf_name in names.items():
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
  return traverse_util.unflatten_dict(head), list(names.values())


def order_of(
  kind: str, config: huggingface.Source, classes: int, source: pathlib.Path
) -> tuple[int, ...]:
  """Returns the indices of a head's classes, from bad to good.

  Raises:
    InputError: See `class_names.order`.
  """
  # transformers knows no value head: what names classes there is another's.
  if kind == VALUE_HEAD:
    return tuple(range(classes))
  return class_names.order(config.raw, classes, source)


# --- Out --------------------------------------------------------------------


def tensors(
  program: kinds.Kind,
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
  for kind, about in KINDS.items():
    if not steps and about.fields.get("outcome_head") == model.outcome_head:
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
    return "CausalLM", _renamed(VALUE_HEAD, head)
  return "TokenClassification", _renamed(
    "TokenClassification", _two_classes(head)
  )


def _renamed(kind: str, head: Head) -> dict[str, np.ndarray]:
  """Returns a head's tensors under their names on the other side."""
  flat = traverse_util.flatten_dict(head)
  return {hf_name: flat[path].T for path, hf_name in KINDS[kind].names.items()}


def _has_outcome_head(program: kinds.Kind) -> bool:
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
  unused = (0, d_model - 2 * classes)

  def both(x: np.ndarray) -> np.ndarray:
    """Returns each entry of the last axis, and after it its negative."""
    return np.stack([x, -x], -1).reshape(*x.shape[:-1], -1)

  outer = both(np.eye(classes, dtype=np.float32))
  return dict(
    inner=dict(
      kernel=np.pad(both(kernel), [(0, 0), unused]),
      bias=np.pad(both(bias), unused),
    ),
    outer=dict(
      kernel=np.pad(outer, [(0, 0), unused]).T,
      bias=np.zeros(classes, np.float32),
    ),
  )
