"""`prm_jax.Serve`: step scores over HTTP, from a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import logging
import os
import time
from typing import ClassVar, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import listening
from prm_jax.runtime import verbs
from prm_jax.serving import server_limits as limits_lib

if TYPE_CHECKING:
  from prm_jax.serving import served_sources

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Serve(verbs.Verb):
  """Answers requests for step scores over HTTP, until SIGTERM.

  Args:
    checkpoint: The checkpoint folders of the PRMs and ORMs to serve, with commas
      between them; NAME=FOLDER gives one a name (default: that of the folder).
      An entry may also be FILE.py:FUNCTION, MODULE:FUNCTION, NAME=ADDRESS of a
      server of scores (up to and including /v1), or the JSON file of a judge
      (docs/serve.md).
    dtype: The type that each checkpoint folder's model computes in: float32,
      bfloat16 or float16; with float32 its weights are held so, too (default:
      what the folder's model.json names, which import takes from the weights).
    segmenter: How texts are cut into steps for a checkpoint that doesn't say it,
      and for what isn't a checkpoint: paragraph, line, sentence, numbered,
      markers (docs/segmenters.md) or tokens:NUMBER, which needs a checkpoint
      (default: requests must give steps).
    upstream_key_variable: The environment variable with the key of the servers
      in --checkpoint (default: none is sent).
    insecure_key: Send that key even if the server is another machine and its
      address begins with http://, so that everyone on the way can read it.
    host: The address to listen at.
    port: The port to listen at; 0 is any that is free.
    key_variable: The environment variable with the key that clients must send,
      or several with commas between them (default: none is asked for).
    insecure: Listen at an address that other machines can reach, without a key.
    no_page: Serve no playground, the page at / on which a person scores a
      solution in a browser.
    limits: What the server accepts, and how long it waits.

  Example:
    prm-jax serve --checkpoint=runs/demo/prm
  """

  checkpoint: str
  dtype: str | None = None
  segmenter: str | None = None
  upstream_key_variable: str | None = None
  insecure_key: bool = False
  host: str = "127.0.0.1"
  port: int = 8000
  key_variable: str | None = None
  insecure: bool = False
  no_page: bool = False
  limits: limits_lib.Limits = dataclasses.field(
    default_factory=limits_lib.Limits
  )

  compiles: ClassVar[bool] = True

  def run(self) -> None:
    """Serves models until SIGTERM.

    Raises:
      InputError: What should be served, or the address, can't be.
    """
    try:
      from prm_jax.serving import app as app_lib
      from prm_jax.serving import server as server_lib
    except ModuleNotFoundError as e:
      raise errors.InputError(
        f"serve needs {e.name}; {errors.to_install('serve')}"
      ) from e
    from prm_jax.serving import models as models_lib

    keys = _keys(self.key_variable)
    if not (keys or self.insecure or listening.is_loopback(self.host)):
      raise errors.InputError(
        f"`host={self.host}`: other machines could use the server without a key;"
        " give `key_variable`, or `insecure=True` if the network is closed"
      )
    models = self.models()
    own = [x for x in models.values() if isinstance(x, models_lib.Model)]
    types = {x.name: x.scorer.config.compute_dtype for x in own}
    shown = ", ".join(
      f"{name} ({types[name]})" if name in types else name for name in models
    )
    num_programs = sum(len(model.programs()) for model in own)
    with listening.listen(self.host, self.port) as listener:
      root = listening.url(*listener.getsockname()[:2])
      where = f"{root}v1"
      page = "" if self.no_page else f" {root} is a page to try it;"
      _logger.info(
        f"{where}: {shown}, {'with' if keys else 'without'} a key;{page}"
        f" compiling {num_programs:,} programs"
      )
      start = time.monotonic()

      def say_ready() -> None:
        took = time.monotonic() - start
        _logger.info(f"{where}: compiled in {took:,.0f} s: ready")

      server = app_lib.Server(
        models, self.limits, keys, has_page=not self.no_page
      )
      server_lib.run(server, listener, say_ready)
    _logger.info(f"{where}: ended")

  def models(self) -> Mapping[str, served_sources.Served]:
    """Loads what is served.

    Returns:
      Each model by its name.

    Raises:
      InputError: An entry can't be loaded, two have one name, or an option is
        for none of them.
    """
    from prm_jax.scoring import score_sources
    from prm_jax.serving import models as models_lib
    from prm_jax.serving import served_sources
    from prm_jax.text import segmenters

    segmenter = segmenters.parse(self.segmenter) if self.segmenter else None
    key = score_sources.Key(self.upstream_key_variable, self.insecure_key)
    entries = [_entry(entry.strip()) for entry in self.checkpoint.split(",")]
    self._check_kinds([served_sources.is_source(where) for _, where in entries])
    models: dict[str, served_sources.Served] = {}
    for name, where in entries:
      if not where:
        raise errors.InputError(
          f"`checkpoint={self.checkpoint}`: an entry is empty; give FOLDER or"
          " NAME=FOLDER"
        )
      model: served_sources.Served
      if served_sources.is_source(where):
        model = served_sources.load(
          where, self.limits, name=name, segmenter=segmenter, key=key
        )
      else:
        model = models_lib.load(
          where,
          self.limits,
          name=name,
          segmenter=segmenter,
          compute_dtype=self.dtype,
        )
      if model.name in models:
        raise errors.InputError(
          f"`checkpoint={self.checkpoint}`: two models are named"
          f" {model.name!r}; name one with NAME=FOLDER"
        )
      models[model.name] = model
    cuts = {x.name: x.segmenter for x in models.values() if x.segmenter}
    if segmenter and segmenter not in cuts.values():
      name, own = next(iter(cuts.items()))
      raise errors.InputError(
        f"`segmenter={self.segmenter}`: the checkpoint of {name!r} says that"
        f" texts are cut by {segmenters.name_of(own)!r}; take it out"
      )
    return models

  def _check_kinds(self, are_sources: list[bool]) -> None:
    """Refuses options of checkpoints, or of others, if there are none."""
    for name in ("upstream_key_variable", "insecure_key"):
      if getattr(self, name) and not any(are_sources):
        raise errors.InputError(
          f"`{name}` is for what isn't a checkpoint, and"
          f" `checkpoint={self.checkpoint}` has only checkpoints; take it out"
        )
    if self.dtype and all(are_sources):
      raise errors.InputError(
        f"`dtype={self.dtype}` is for checkpoints, and"
        f" `checkpoint={self.checkpoint}` has none; take it out"
      )


def _entry(text: str) -> tuple[str | None, str]:
  """Returns the name in an entry of `checkpoint`, if any, and what it names.

  A folder, a file and an address may hold a "=", too: a name ends at the first
  one, unless all of the entry is an address, or is there without a name.

  Args:
    text: The entry.
  """
  from prm_jax.scoring import score_sources

  name, equals, where = text.partition("=")
  if not equals or "://" in name:
    return None, text
  path = score_sources.path_of(text)
  # Unlike path.exists(), it takes any text.
  if path is not None and os.path.exists(path):
    return None, text
  return name.strip() or None, where.strip()


def _keys(variable: str | None) -> list[str]:
  """Returns the keys that an environment variable holds."""
  if variable is None:
    return []
  keys = [key.strip() for key in os.environ.get(variable, "").split(",")]
  if not all(keys):
    raise errors.InputError(
      f"`key_variable={variable}`: the environment variable holds no key, or an"
      " empty one; set it to a key, or to several with commas between them"
    )
  if not all(key.isascii() and key.isprintable() for key in keys):
    # Clients write other letters into a header each in their own way.
    raise errors.InputError(
      f"`key_variable={variable}`: a key has a character that no header can send"
      " alike; set it to letters, digits and signs of ASCII"
    )
  return keys
