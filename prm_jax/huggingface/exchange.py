"""`prm_jax.Import` and `prm_jax.Export`: models from Hugging Face and back.

What they read and write are folders, so these are fields of theirs; there is no
job beside them.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import ClassVar, Literal, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.huggingface import import_model
  from prm_jax.huggingface import import_policy
  from prm_jax.huggingface import model_card
  from prm_jax.text import policy_text

_logger = logging.getLogger(__name__)
# The options of a policy alone.
_POLICY = ("policy_template", "thinking", "prompt_file")


@dataclasses.dataclass(frozen=True)
class Import(verbs.Verb):
  """Converts a Hugging Face model to a checkpoint folder of prm_jax.

  Args:
    source: The folder of the Hugging Face model, or its name on the Hub,
      ORG/NAME, which huggingface_hub downloads into its cache.
    to: The checkpoint folder to write; it must be new.
    base: If --from is a PEFT adapter, the folder or the Hub's name of the model
      that it adapts; the checkpoint has both, not merged.
    template: Read a language model as a PRM in this format: math_shepherd or
      rlhflow (default: PRMs with a score head are recognised; any other model
      is imported as a language model).
    system: For templates that are chats, the system message to use (default:
      the template's own).
    role: With the value policy, also save how the model is prompted, what ends
      its texts and how they are cut into steps, from its chat template and
      generation_config.json (docs/policies.md).
    policy_template: With --role=policy, a known template: qwen2_5,
      qwen2_5_math, qwen3, llama3, llama3_1, mistral, gemma, plain or
      gsm8k_4_shot; auto renders the folder's chat template (default: the
      template that an export of ours has saved, or else auto).
    thinking: With --role=policy, whether a model that can think does so before
      its solution (default: as its chat template has it).
    prompt_file: With --role=policy, a text file with {problem} in it, once, to
      write before a solution, such as solved examples (default: see
      --policy_template).
    segmenter: For a reward model, a policy that prm_jax exported, or with
      --role=policy, how texts are cut into steps: paragraph, line, sentence,
      numbered, markers or tokens:NUMBER (docs/segmenters.md; default: as the
      policy's template or the reward model's authors do, if that is known).
    dtype: The value float32 saves the weights so, and computes in it (default:
      in the type that they have, as bfloat16).
    revision: The branch, tag or commit of a model on the Hub (default: its main
      branch).
    verify: Afterwards compare the model's scores, or the log-probabilities of a
      language model, with those of transformers, which must be installed (and
      PEFT for --base).

  Example:
    prm-jax import --from=Qwen/Qwen2.5-Math-PRM-7B --to=runs/qwen_prm
  """

  source: verbs.Local = dataclasses.field(metadata=dict(flag="from"))
  to: verbs.Output
  base: verbs.Local | None = None
  template: str | None = None
  system: str | None = None
  role: Literal["policy"] | None = None
  policy_template: str | None = None
  thinking: bool | None = None
  prompt_file: verbs.Local | None = None
  segmenter: str | None = None
  dtype: Literal["float32"] | None = None
  revision: str | None = None
  verify: bool = False

  compiles: ClassVar[bool] = True

  def __post_init__(self):
    super().__post_init__()
    for name in _POLICY:
      if self.role is None and getattr(self, name) is not None:
        raise errors.InputError(f"`{name}` is of a policy; give `role=policy`")

  def __call__(self) -> import_model.Imported:
    """Makes the checkpoint folder; returns what is known of the model.

    Raises:
      InputError: The model can't be read, or fetched, or isn't supported; or
        the folder isn't new.
    """
    from prm_jax.huggingface import hub
    from prm_jax.huggingface import import_model
    from prm_jax.runtime import environment

    given, target = pathlib.Path(self.source), pathlib.Path(self.to)
    read = [given, self.prompt_file, self.base]
    outputs.check(dict(to=target), read, are_folders=True)
    policy = self._policy()
    import_model.check_new(target)  # before anything is downloaded
    name = given.as_posix() if hub.is_name(given) else None
    source = hub.local_folder(given, self.revision)
    base = None
    if self.base is not None:
      base = hub.local_folder(self.base)
      is_name = hub.is_name(self.base)
      name = pathlib.Path(self.base).as_posix() if is_name else None
    with environment.remove_if_refused(target):
      return import_model.import_folder(
        source,
        target,
        template=self.template,
        system=self.system if policy is None else None,
        dtype=self.dtype,
        policy=policy,
        segmenter=self.segmenter if policy is None else None,
        name=name,
        base=base,
      )

  def _policy(self) -> import_policy.Options | None:
    """Returns how a policy is prompted; None if no policy is asked for."""
    from prm_jax.huggingface import import_policy
    from prm_jax.runtime import files

    if self.role is None:
      return None
    prompt = None
    if self.prompt_file is not None:
      # Editors on Windows write a mark first.
      prompt = files.read_text(self.prompt_file).removeprefix("\ufeff")
    return import_policy.Options(
      *(self.policy_template, self.system, self.thinking, prompt),
      segmenter=self.segmenter,
    )

  def run(self) -> None:
    """Imports, and says what the model is; compares it if that is asked for.

    Raises:
      InputError: As of a call, or the model differs from transformers'.
    """
    from prm_jax.models import kinds
    from prm_jax.text import policy_templates
    from prm_jax.text import policy_text

    imported = self()
    program, how = imported.description.program, imported.how
    template, policy = how.encoding.template, None
    kind = "a policy, or what a training run starts from"
    if program not in kinds.POLICIES:
      kind = f"{kinds.with_article(program)}, read as {template.name}"
    elif isinstance(template, policy_text.PolicyTemplate):
      policy, kind = template, f"a policy, {_prompted(template)}"
    _logger.info(f"{self.to}: {imported.family}, {kind}")
    if policy_templates.lacks_temperature(template, how.sampling):
      progress.log(
        f"{self.to}: will be sampled at temperature 1, since"
        " generation_config.json is missing or names none; give sample, search"
        " and label `temperature`"
      )
    if self.prompt_file is not None and policy and not policy.stop:
      _logger.info(
        f"{self.prompt_file}: no text of it ends a solution, because no earlier"
        " line begins as the line with {problem} does; after examples the model"
        " may write further problems: begin each example as that line begins"
      )
    if how.ignored:
      _logger.info(
        f"{', '.join(how.ignored)} of generation_config.json: our sampler"
        " doesn't do this"
      )
    for name in imported.left_out:
      _logger.info(f"left out: {name}, which nothing reads")
    if self.verify:
      _verify(imported, pathlib.Path(self.to))


def _prompted(template: policy_text.PolicyTemplate) -> str:
  """Returns how a policy is prompted, what ends it and how it is cut."""
  from prm_jax.text import segmenters

  ends = ", ".join(template.ends)
  stop = "".join(f", {text!r}" for text in template.stop)
  return (
    f"prompted as {template.name}; a solution ends at {ends}{stop}; steps are"
    f" cut by {segmenters.name_of(template.segmenter)}"
  )


def _verify(imported: import_model.Imported, target: pathlib.Path) -> None:
  """Says how far the imported model is from transformers.

  Raises:
    InputError: It is too far, or can't be compared.
  """
  from prm_jax.huggingface import verify

  kept = f"{target} was imported, and is kept"
  try:
    compared = verify.compare(imported.source, target, imported.base)
  except errors.InputError as e:
    raise errors.InputError(f"verify: {e}; {kept}") from None
  difference = (
    f"{compared.num_values} {compared.what} differ from transformers' by"
    f" {compared.largest:.2g} at most"
  )
  if not compared.largest <= compared.tolerance:
    raise errors.InputError(
      f"verify: {difference}; up to {compared.tolerance:g} is rounding; don't"
      " use the model: report its config.json, or adapter_config.json, as a bug;"
      f" {kept}"
    )
  _logger.info(f"verified: {difference} (allowed: {compared.tolerance:g})")
  if compared.ids is not None and compared.ids.agrees:
    _logger.info(f"verified: {compared.ids}")
  elif compared.ids is not None:
    progress.log(f"warning: verify: {compared.ids}")


@dataclasses.dataclass(frozen=True)
class Export(verbs.Verb):
  """Converts a checkpoint folder to a Hugging Face model with a model card.

  Args:
    checkpoint: The checkpoint folder to convert.
    to: The folder to write; it must be new.
    template: Refuse the export if the checkpoint doesn't read this format;
      native is prm_jax's own (default: no check).
    dtype: The type of the saved numbers; if it rounds them, the command says by
      how much scores move (default: float32, or of an import that wasn't
      trained the type that it came in).
    sample: The solutions, in JSON Lines, whose scores are computed before and
      after rounding, or of a policy the log-probabilities (default: 46 steps of
      school mathematics).
    step: The update whose saved parameters are used; best is the saved one with
      the best fit.best_metric of its run (default: the latest one that was
      saved).
    base: Write the adapters and the head alone, as a PEFT adapter of this
      model: its Hugging Face folder, or its name on the Hub; it must be the
      model that they were trained on (default: the adapters are merged).
    base_model: For the model card, the Hub's name of the model that training
      started from (default: that of the imported model, if it is known).
    license: For the model card, the licence as the Hub names it, such as
      apache-2.0 (default: that on the imported model's card).
    dataset: For the model card, the Hub's name of a dataset that the model was
      trained on; may be repeated.

  Example:
    prm-jax export --checkpoint=runs/demo/prm --to=runs/demo/prm_hf
  """

  checkpoint: verbs.Local
  to: verbs.Output
  template: str | None = None
  dtype: Literal["bfloat16", "float32", "float16"] | None = None
  sample: verbs.Local | None = None
  step: verbs.Step = None
  base: verbs.Local | None = None
  base_model: str | None = None
  license: str | None = None
  dataset: tuple[str, ...] = ()

  compiles: ClassVar[bool] = True

  def __call__(self) -> model_card.Facts:
    """Makes the Hugging Face folder; returns what its card says.

    Raises:
      InputError: The checkpoint can't be read, has no place in a published
        architecture, or doesn't fit the type; or the folder isn't new.
    """
    from prm_jax.huggingface import card_fields
    from prm_jax.huggingface import export_model
    from prm_jax.huggingface import hub
    from prm_jax.records import jsonl
    from prm_jax.runtime import environment

    source, target = pathlib.Path(self.checkpoint), pathlib.Path(self.to)
    read = [source, self.base, self.sample]
    outputs.check(dict(to=target), read, are_folders=True)
    base = None if self.base is None else hub.local_folder(self.base)
    sample = None
    if self.sample is not None:
      sample = jsonl.read_solutions(self.sample)
    base_model = self.base_model
    if base_model is None and self.base is not None and hub.is_name(self.base):
      base_model = pathlib.Path(self.base).as_posix()
    with environment.remove_if_refused(target):
      return export_model.export_folder(
        source,
        target,
        template=self.template,
        dtype=self.dtype,
        step=self.step,
        card=card_fields.Fields(
          base_model=base_model, license=self.license, datasets=self.dataset
        ),
        base=base,
        sample=sample,
      )

  def run(self) -> None:
    """Exports, and says what the folder holds."""
    facts = self()
    _logger.info(
      f"{self.to}: {facts.architecture}, {facts.dtype}, read as"
      f" {facts.template}; README.md says how"
    )
    for moved in facts.rounding:
      _logger.info(f"rounded to {facts.dtype}: {moved}")
    if self.sample is not None and not facts.rounding:
      _logger.info(
        f"{self.sample}: not scored: in {facts.dtype} no number of the"
        " checkpoint is rounded"
      )
