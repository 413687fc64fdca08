"""`prm_jax.Doctor`: what is installed here, and on which devices it runs."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
from typing import ClassVar

from prm_jax import errors
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Doctor(verbs.Verb):
  """Prints versions, devices, and which optional packages are missing.

  Example:
    prm-jax doctor
  """

  is_printed: ClassVar[bool] = True

  def __call__(self) -> str:
    """Looks at what is installed, and asks jax for its devices.

    Returns:
      Versions, devices, and the line that installs each extra.
    """
    from prm_jax.runtime import environment

    facts = dict(environment.versions())
    try:
      facts |= environment.machine()
    except RuntimeError as e:  # jax finds no usable device
      facts["devices"] = f"unusable: {e}"
    kept = compilation_cache.why_off() or compilation_cache.folder_of()
    facts["compiled programs"] = str(kept)
    lines = [f"{name:22} {fact}" for name, fact in facts.items()]
    lines.append("")
    for extra, (module, purpose) in environment.EXTRAS.items():
      if importlib.util.find_spec(module):
        lines.append(f"extra {extra:16} installed ({purpose})")
      else:
        lines.append(
          f"extra {extra:16} missing ({purpose}): {errors.to_install(extra)}"
        )
    data = os.environ.get("PRM_JAX_DATA")
    lines.append(f"PRM_JAX_DATA           {data or 'not set'}")
    return "\n".join(lines)

  def run(self) -> None:
    """Says what it finds."""
    verbs.log_text(_logger, self())
