"""The lines of a model card's Python that load a model and score ids."""

from __future__ import annotations

from collections.abc import Sequence
import json
import pathlib
from typing import NamedTuple

from prm_jax import huggingface
from prm_jax.huggingface import heads
from prm_jax.models import model_config


class Scoring(NamedTuple):
  """How a model is loaded and scores, as lines of Python.

  Args:
    loads: Lines that set `model`, and `head` if transformers has no class for
      the whole of it.
    computes: Lines that set `scores`, given `ids` and `places`.
    of_whole: Whether there is one score, of the whole text.
    imports: The further packages that the lines need.
  """

  loads: Sequence[str]
  computes: Sequence[str]
  of_whole: bool = False
  imports: tuple[str, ...] = ()


class Adapts(NamedTuple):
  """The base of an adapter, and the labels of its head (0 for a language model)."""

  base_model: str
  num_labels: int


_WHOLE = "ForSequenceClassification"


def scoring(
  folder: pathlib.Path,
  architecture: str,
  model: model_config.ModelConfig,
  adapts: Adapts | None = None,
) -> Scoring | None:
  """Returns how an exported model scores; None if that needs more code.

  Args:
    folder: The exported folder.
    architecture: The class that loads it.
    model: The shape of the model.
    adapts: What the folder adapts, if it has adapters alone.
  """
  if adapts is not None:
    whole = _of_class(architecture, model)
    return None if whole is None else _with_adapter(whole, adapts)
  tensors = huggingface.open_tensors(folder)
  kind = heads.kind_of(architecture, tensors.names)
  if kind in (None, "TokenClassification", "SequenceClassification"):
    return _of_class(architecture, model)
  return _of_head(heads.KINDS[kind], tensors)


def _with_adapter(scoring: Scoring, adapts: Adapts) -> Scoring:
  """Returns how a base with an adapter scores."""
  labels = f"num_labels={adapts.num_labels}, " if adapts.num_labels else ""
  (load,) = scoring.loads
  base = json.dumps(adapts.base_model)
  loads = [
    load.replace('"HERE", ', f"{base}, {labels}"),
    'model = peft.PeftModel.from_pretrained(model, "HERE")',
  ]
  return scoring._replace(loads=loads, imports=("peft",))


def _of_class(
  architecture: str, model: model_config.ModelConfig
) -> Scoring | None:
  """Returns how a model scores that transformers has a class for."""
  if architecture.endswith(_WHOLE):
    whole = "model(torch.tensor([ids[: places[-1] + 1]]))"
    loads = [_from_pretrained("AutoModelForSequenceClassification")]
    computes = [f"scores = {whole}.logits[0].sigmoid()"]
    return Scoring(loads, computes, of_whole=True)
  logits = "model(torch.tensor([ids])).logits[0, places]"
  if architecture.endswith("ForTokenClassification"):
    # All but the first class, bad: good alone, or neutral and good.
    loads = [_from_pretrained("AutoModelForTokenClassification")]
    return Scoring(loads, [f"scores = {logits}.softmax(-1)[:, 1:].sum(-1)"])
  if model.step_head != "tokens":
    return None
  good, bad = model.step_tokens
  scores = f"scores = {logits}[:, [{good}, {bad}]].softmax(-1)[:, 0]"
  return Scoring([_from_pretrained("AutoModelForCausalLM")], [scores])


def _of_head(head: heads.Kind, tensors: huggingface.Tensors) -> Scoring | None:
  """Returns how a model scores whose head transformers has no class for."""
  files = {tensors.entries[name].file.name for name in head.names.values()}
  if len(files) > 1:
    return None
  loads = [
    _from_pretrained("AutoModel"),
    f'head = safetensors.torch.load_file("HERE/{files.pop()}")',
  ]
  names = [x for x in head.names.values() if x.endswith(".weight")]
  *inner, outer = (x.removesuffix(".weight") for x in names)
  scores = "scores = logits.softmax(-1)[:, 1]"
  if tensors.entries[names[-1]].shape[0] == 1:
    scores = f"scores = logits[{'-1' if head.is_outcome else ':, 0'}].sigmoid()"
  computes = [
    "x = model(torch.tensor([ids])).last_hidden_state[0, places]",
    *(f"x = torch.relu({_linear(name)})" for name in inner),
    f"logits = {_linear(outer)}",
    scores,
  ]
  return Scoring(loads, computes, head.is_outcome, ("safetensors.torch",))


def _from_pretrained(name: str) -> str:
  load = f"transformers.{name}.from_pretrained"
  return f'model = {load}("HERE", dtype=torch.float32)'


def _linear(name: str) -> str:
  weight, bias = (f'head["{name}.{x}"].float()' for x in ("weight", "bias"))
  return f"x @ {weight}.T + {bias}"
