"""A PRM in Qwen2's shape with the same weights and ids on both sides.

Ours is a ModelConfig with parameters; the peer's is a Hugging Face folder that
transformers and TRL read: our export, and a tokenizer.json learnt from the
texts at hand. Nothing here imports torch before `torch` is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
import functools
import importlib.metadata
import os
import pathlib
import tempfile
from typing import Any, NamedTuple

from flax.core import meta
import jax
import results
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.huggingface import class_names
from prm_jax.huggingface import heads
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.records import sources
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import prm

END = "<|endoftext|>"
DIALECT = "token_classification"
# Words, single digits, marks, line breaks: what Qwen2 splits a text by, less
# its English contractions.
_WORDS = (
  r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Model(NamedTuple):
  """Both sides of one PRM. folder: the peer's; it lives as long as the run."""

  config: model_config.ModelConfig
  params: Any
  tokenizer: tokenizer_lib.Tokenizer
  encoding: encoding.EncodingConfig
  folder: pathlib.Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--device", choices=("cpu", "gpu"), default="cpu", help="of both sides")
  add("--seed", type=int, default=0)
  add("--vocabulary", type=int, default=16_384)
  add("--d_model", type=int, default=512, help="a multiple of 64")
  add("--num_layers", type=int, default=8)
  add("--num_kv_heads", type=int, default=2)
  add("--d_ff", type=int, default=1408)


def use_device(device: str) -> None:
  """Settles where both sides compute; call it before anything does.

  Raises:
    InputError: a GPU is wanted that jax or torch doesn't see.
  """
  # torch's threads would wait for each other in a busy loop, on the cores that
  # the other side computes on; and jax would take a GPU's whole memory.
  os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  if device == "cpu":
    jax.config.update("jax_platforms", "cpu")
    torch().set_num_threads(os.cpu_count() or 1)
    return
  seen = dict(jax=jax.default_backend() == "gpu")
  seen["torch"] = torch().cuda.is_available()
  for name, ready in seen.items():
    if not ready:
      raise errors.InputError(
        f"--device=gpu: {name} sees none; install its CUDA build, or give"
        " --device=cpu"
      )


def torch() -> Any:
  """Returns the module; refuses in one line where it isn't there."""
  try:
    import torch as found
    import transformers
  except ImportError as e:
    raise errors.InputError(
      f"{e.name} isn't installed; {errors.to_install('bench')}"
    ) from None
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  return found


def torch_tokenizer(folder: pathlib.Path) -> Any:
  """Returns the folder's tokenizer; it pads with an id that no text yields."""
  import transformers

  file = str(folder / "tokenizer.json")
  return transformers.PreTrainedTokenizerFast(
    tokenizer_file=file, eos_token=END, pad_token=END
  )


def wait(device: str) -> None:
  """Returns when torch has done what it was told to."""
  if device == "gpu":
    torch().cuda.synchronize()


def make(
  args: argparse.Namespace,
  solutions: Iterable[schema.Solution],
  folder: pathlib.Path,
  max_tokens: int,
) -> Model:
  """Returns a random PRM of `add_arguments`' shape, and writes the folder.

  max_tokens: see encoding.EncodingConfig.
  """
  texts = dict.fromkeys(t for s in solutions for t in (s.problem, *s.steps))
  tokenizer = _learn_tokenizer(list(texts), args.vocabulary)
  # Alternatives share most of their steps: each text is encoded once.
  encode_once = functools.cache(tokenizer.encode)
  tokenizer.encode = lambda text: [*encode_once(text)]
  encoding_config = encoding.with_template(
    encoding.EncodingConfig(max_tokens=max_tokens, template=DIALECT), tokenizer
  )
  num_heads = max(1, args.d_model // 64)
  config = model_config.ModelConfig(
    vocab_size=args.vocabulary,
    d_model=args.d_model,
    num_layers=args.num_layers,
    num_heads=num_heads,
    num_kv_heads=min(args.num_kv_heads, num_heads),
    head_dim=args.d_model // num_heads,
    d_ff=args.d_ff,
    rope_theta=1e6,
    qkv_bias=True,
    step_classes=2,
    scan=False,  # a tenth faster on a CPU, compiled longer
  )
  params = _init(config, args.seed)
  _export(config, params, folder)
  tokenizer.save(folder)
  return Model(config, params, tokenizer, encoding_config, folder)


def _learn_tokenizer(
  texts: Sequence[str], vocabulary: int
) -> tokenizer_lib.HuggingFace:
  """Returns a byte-level BPE in the manner of Qwen2's, learnt from texts."""
  made = tokenizers.Tokenizer(models.BPE())
  split = pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
  level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
  made.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocabulary,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    special_tokens=[END],
    show_progress=False,
  )
  made.train_from_iterator(texts, trainer)
  return tokenizer_lib.HuggingFace(made.to_str(), eos=END)


def _init(config: model_config.ModelConfig, seed: int) -> Any:
  """Returns random parameters; the head, zero at birth, would tell nothing."""
  trunk, head = jax.random.split(jax.random.key(seed))
  params = meta.unbox(transformer.init(trunk, config, ("step",)))
  kernel = params["step_head"]["kernel"]
  noise = jax.random.normal(head, kernel.shape, kernel.dtype)
  step_head = {**params["step_head"], "kernel": noise * config.d_model**-0.5}
  return {**params, "step_head": step_head}


def _export(
  config: model_config.ModelConfig, params: Any, folder: pathlib.Path
) -> None:
  _, head = heads.tensors(prm.KIND, DIALECT, config, params, folder)
  tensors = [
    *huggingface.export_tensors("qwen2", config, params),
    *head.items(),
  ]
  huggingface.save(
    folder,
    "qwen2",
    config,
    tensors,
    dtype="float32",
    architecture="Qwen2ForTokenClassification",
    extra=dict(max_position_embeddings=32_768, pad_token_id=0)
    | class_names.names_of(list(head.values())[-1].shape[0]),
  )


def read(path: str) -> list[schema.Solution]:
  """Returns PRM800K's solutions.

  Raises:
    InputError: the file isn't there.
  """
  file = sources.find(path)
  if not file.exists():
    raise errors.InputError(
      f"{file}: set PRM_JAX_DATA to the folder that holds it"
    )
  return sources.read("prm800k", path)[0]


def versions() -> dict[str, str]:
  """Returns the other side's, "missing" where it isn't installed."""
  installed = {}
  for name in ("torch", "transformers", "trl"):
    try:
      installed[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      installed[name] = "missing"
  return installed


def run_suites(
  script: str,
  args: argparse.Namespace,
  suites: Iterable[str],
  measure: Callable[[str, argparse.Namespace, pathlib.Path], dict[str, Any]],
) -> None:
  """Measures args.suite, or all, each in a folder of its own; writes results."""
  use_device(args.device)
  result = results.provenance(script, args) | dict(suites={})
  result["versions"] |= versions()
  for suite in [args.suite] if args.suite else suites:
    print(suite, flush=True)
    with tempfile.TemporaryDirectory() as folder:
      measured = measure(suite, args, pathlib.Path(folder))
    result["suites"][suite] = measured
    print(results.show(measured), flush=True)
  results.finish(result, args.output)
